"""RECIPES: the published recipes by name, read from recipes.tsv, one row per recipe with its source.

The columns are fields of `Recipe`; an empty cell is the field's default. The sources state the learning rates of DeiT
and Swin per 512 images and those of BiT per 256; the table has them for the whole batch. As in timm, DeiT and Swin use
no colour jitter in addition to RandAugment.
"""

import ast
import fnmatch
import math
from typing import Any

import keras

from keras_vit import checks
from keras_vit.files import read_table
from keras_vit.models import VisionTransformer
from keras_vit.training.recipe import Recipe
from keras_vit.typing import Size

_WORDS = {"none": None, "null": None, "true": True, "false": False}

# row of the HyperRule -> the number of training images must be below this
_HYPER_RULE = {"small": 20_000, "medium": 500_000, "large": float("inf")}
_SMALL_AREA = 96 * 96


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the recipes, in the order of the table.

    Args:
        pattern: shell-style pattern for the names, such as `"augreg/*"`; case-sensitive.
    """
    return [name for name in RECIPES if fnmatch.fnmatchcase(name, pattern)]


def bit_hyperrule(examples: int, image_size: Size) -> Recipe:
    """Return the fine-tuning recipe of the HyperRule (arXiv 1912.11370, section 3.3).

    Args:
        examples: number of training images.
        image_size: (height, width) of the images in pixels, or one integer. Images with an area below 96 x 96 are
            resized to 160 and cropped to 128, others are resized to 448 and cropped to 384.

    Raises:
        ValueError: if `examples` is not an integer above 0, or `image_size` is not a valid size.
    """
    examples = checks.check_integer("examples", examples)
    height, width = checks.check_pair("image_size", image_size)
    recipe = RECIPES[f"bit/finetune/{next(name for name, limit in _HYPER_RULE.items() if examples < limit)}"]
    if height * width >= _SMALL_AREA:
        return recipe
    source = recipe.source.replace("images of 384 pixels", "images of 128 pixels")
    return recipe.replace(augment=("random_crop(160)", "flip"), image_size=128, source=source)


def continued_pretraining(model: keras.Model, images: int, batch_size: int = 64) -> Recipe:
    """Return the recipe `dinov2/continue` for a model and a number of images.

    It has 2^k prototypes, about one for 16 images (1,024 to 65,536), Sinkhorn-Knopp from 64 images per batch on and
    softmax below, no KoLeo below 16, local crops of 3/7 of the model's image size, as in DINO and DINOv2, and the
    learning rate of the recipe times the square root of `batch_size` over its batch size (arXiv 2304.07193).

    Args:
        model: the encoder to go on with.
        images: number of training images.
        batch_size: images per step, over all devices.

    Raises:
        TypeError: if `model` is not a `VisionTransformer`.
        ValueError: if a number is not an integer above 0.
    """
    checks.check_instance("model", model, VisionTransformer, "a keras_vit.VisionTransformer")
    images, batch_size = checks.check_integer("images", images), checks.check_integer("batch_size", batch_size)
    recipe = RECIPES["dinov2/continue"]
    sides = zip(model.preprocessing.image_size, model.config.patch_size, strict=True)
    settings = {
        **(recipe.pretraining or {}),
        "out_dim": 2 ** min(max(int(math.log2(images / 16)), 10), 16),
        "centering": "sinkhorn_knopp" if batch_size >= 64 else "softmax",
    }
    if batch_size < 16:
        settings["koleo_weight"] = 0.0
    return recipe.replace(
        batch_size=batch_size,
        learning_rate=recipe.learning_rate * math.sqrt(batch_size / recipe.batch_size),
        pretraining=settings,
        crops={**(recipe.crops or {}), "local_size": tuple(step * max(round(side * 3 / 7 / step), 1) for side, step in sides)},
    )


def read_field(name: str, text: str) -> Any:
    """Return the value of a field of `Recipe` that is given as text.

    `"0.01"` gives 0.01, `"(0.3, 0.6)"` a tuple, `"none"` None; other words stay strings. For `augment` and `mix`,
    `"flip, randaugment(2, 15)"` gives two strings, and so does `'["flip", "randaugment(2, 15)"]'`.

    Args:
        name: name of the field.
        text: its value as text.
    """
    if name in ("augment", "mix"):
        return _strings(text)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _strings(text):
    if text.lower() in ("", "none"):
        return ()
    try:
        parsed = ast.parse(text, mode="eval").body  # distinguishes commas between calls from those inside
    except SyntaxError:
        return (text,)  # the recipe reports what is wrong
    parts = parsed.elts if isinstance(parsed, (ast.Tuple, ast.List)) else [parsed]
    return tuple(ast.get_source_segment(text, part).strip("'\"") for part in parts)


class _Recipes(dict[str, Recipe]):
    """A dict whose `KeyError` suggests similar names."""

    def __missing__(self, name):
        hint = checks.suggestion(name, self, most=3, cutoff=0.4)
        raise KeyError(f"there is no recipe {name!r}{hint}; keras_vit.training.list_recipes() lists them")


_ROWS = ({name: read_field(name, text) for name, text in row.items()} for row in read_table("training/recipes.tsv"))
RECIPES: dict[str, Recipe] = _Recipes({row["name"]: Recipe(**row) for row in _ROWS})
