"""RECIPES: the table of all named recipes."""

import fnmatch

from keras_vit import checks
from keras_vit.config import ViTConfig
from keras_vit.training.published import augreg, bit, imagenet, vit
from keras_vit.training.recipe import Recipe


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the recipes, in the order of the table.

    Args:
        pattern: shell-style pattern for the names, such as `"augreg/*"`; case-sensitive.
    """
    return [name for name in RECIPES if fnmatch.fnmatchcase(name, pattern)]


_QUICKSTART = Recipe(
    name="quickstart",
    source="this project: scikit-learn's bundled digits on two CPU cores in about a minute",
    optimizer="adamw",
    learning_rate=3e-3,
    batch_size=64,
    epochs=100,
    warmup_fraction=0.1,
    weight_decay=0.5,
    clip_norm=1.0,
    augment=("shift",),
    dataset="digits",
    model=ViTConfig(
        name="ViT-digits",
        image_size=8,
        patch_size=4,
        hidden_dim=64,
        num_layers=4,
        num_heads=4,
        mlp_dim=128,
        dropout_rate=0.1,
        classes=10,
        channels=1,
    ),
)


class _Recipes(dict[str, Recipe]):
    """A dict whose `KeyError` suggests similar names."""

    def __missing__(self, name):
        hint = checks.suggestion(name, self, most=3, cutoff=0.4)
        raise KeyError(f"there is no recipe {name!r}{hint}; keras_vit.training.list_recipes() lists them")


RECIPES: dict[str, Recipe] = _Recipes(
    (recipe.name, recipe) for recipe in (_QUICKSTART, *vit.RECIPES, *augreg.RECIPES, *imagenet.RECIPES, *bit.RECIPES)
)
