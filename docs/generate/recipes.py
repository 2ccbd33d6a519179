"""The page of the recipes: every row of the table, with its source."""

import functools

from tables import table

import keras_vit

_PAGE = """# Recipes

The {count} names of the first column are values of the first argument of `keras_vit.train`. `keras_vit.training.Recipe`
describes the fields of a recipe, and `keras-vit train --recipe NAME --show` prints all fields of one. The guide
[Recipes, data and augmentation](guides/training.md) shows how to change them.

{recipes}"""


@functools.cache
def pages():
    recipes = keras_vit.training.RECIPES
    rows = (
        (f"`{name}`", recipe.length, f"{recipe.batch_size:,}", f"{recipe.learning_rate:g}", recipe.source)
        for name, recipe in recipes.items()
    )
    columns = ("recipe", "length", "batch", "learning rate", "source")
    return {"recipes.md": _PAGE.format(count=len(recipes), recipes=table(columns, rows))}
