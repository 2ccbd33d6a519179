"""The page of the recipes: every row of the table, with its source."""

import functools

from tables import table

import keras_vit

_PAGE = """# Recipes

{count} recipes, the first argument of `keras_vit.train`. What a row holds is described with
`keras_vit.training.Recipe`; `keras-vit train --recipe NAME --show` prints one whole, and the guide on
[Recipes, data and augmentation](guides/training.md) shows how to change it.

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
