"""RECIPES: the published recipes by name, read from recipes.tsv, one row per recipe with its source.

The columns are fields of `Recipe`; an empty cell is the field's default. The sources state the learning rates of DeiT
and Swin per 512 images and those of BiT per 256; the table has them for the whole batch. As in timm, DeiT and Swin use
no colour jitter in addition to RandAugment.
"""

import ast
import fnmatch
import math
from typing import Any

from keras_vit import checks
from keras_vit.files import read_table
from keras_vit.models import VisionTransformer
from keras_vit.training.recipe import Recipe
from keras_vit.typing import Size

_WORDS = {"none": None, "null": None, "true": True, "false": False}

# row of the HyperRule -> the number of training images must be below this
_HYPER_RULE = {"small": 20_000, "medium": 500_000, "large": float("inf")}
_SMALL_AREA = 96 * 96
_SMALL_BATCH = 16  # images; smaller ones are too few for KoLeo and Sinkhorn-Knopp


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


def continued_pretraining(
    model: VisionTransformer, images: int, batch_size: int = 32, epochs: int | None = None, steps: int | None = None
) -> Recipe:
    """Return the recipe `dinov2/continue` for a model and a number of images.

    The learning rate grows with the square root of the batch size (arXiv 2304.07193, facebookresearch/dinov2). The
    other rules are our own, and only their smallest values are measured: about one prototype for 16 images, a power of
    2 from 512 to 65,536; an average over a fifteenth of the run (a momentum from 0.9 to 0.996); no KoLeo for fewer than
    16 images per batch, and softmax centring instead of Sinkhorn-Knopp; warm-ups of at most a tenth of the run. Local
    crops have 3/7 of the model's image size, as in DINO and DINOv2.

    Args:
        model: the encoder to go on with, a `VisionTransformer`.
        images: number of training images.
        batch_size: images per step, over all devices.
        epochs: passes over the images; 10 if neither `epochs` nor `steps` is given.
        steps: length of the run in steps, instead of `epochs`.

    Raises:
        TypeError: if `model` is not a `VisionTransformer`.
        ValueError: if a number is not an integer above 0, if both `epochs` and `steps` are given, or if the images do
            not fill a batch.
    """
    checks.check_instance("model", model, VisionTransformer, "a keras_vit.VisionTransformer")
    known, is_small = RECIPES["dinov2/continue"], batch_size < _SMALL_BATCH
    rate = known.learning_rate * math.sqrt(checks.check_integer("batch_size", batch_size) / known.batch_size)
    lengths = {name: value for name, value in (("epochs", epochs), ("steps", steps)) if value is not None}
    recipe = known.replace(batch_size=batch_size, learning_rate=rate, warmup_steps=0, encoder_warmup_steps=0, **lengths)
    steps = math.prod(recipe.total_steps(images))
    settings = {
        "out_dim": 2 ** min(max(int(math.log2(images / 16)), 9), 16),
        "teacher_momentum": min(max(1 - 15 / steps, 0.9), 0.996),
        **({"centering": "softmax", "koleo_weight": 0.0} if is_small else {}),
    }
    sides = zip(model.preprocessing.image_size, model.config.patch_size, strict=True)
    local = [step * max(round(side * 3 / 7 / step), 1) for side, step in sides]
    return recipe.replace(
        pretraining={**(known.pretraining or {}), **settings},
        crops={**(known.crops or {}), "local_size": local},
        warmup_steps=min(known.warmup_steps, steps // 10),
        encoder_warmup_steps=min(known.encoder_warmup_steps, steps // 10),
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
