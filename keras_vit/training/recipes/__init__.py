"""RECIPES: the table of all named recipes; each file has those of one family, with their sources."""

import fnmatch

from keras_vit import checks
from keras_vit.training.recipe import Recipe
from keras_vit.training.recipes import augreg, bit, imagenet, vit


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the recipes, in the order of the table.

    Args:
        pattern: shell-style pattern for the names, such as `"augreg/*"`; case-sensitive.
    """
    return [name for name in RECIPES if fnmatch.fnmatchcase(name, pattern)]


class _Recipes(dict[str, Recipe]):
    """A dict whose `KeyError` suggests similar names."""

    def __missing__(self, name):
        hint = checks.suggestion(name, self, most=3, cutoff=0.4)
        raise KeyError(f"there is no recipe {name!r}{hint}; keras_vit.training.list_recipes() lists them")


RECIPES: dict[str, Recipe] = _Recipes(
    (recipe.name, recipe) for recipe in (*vit.RECIPES, *augreg.RECIPES, *imagenet.RECIPES, *bit.RECIPES)
)
