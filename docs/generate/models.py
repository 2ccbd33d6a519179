"""The page of the models: the zoo's table, what each costs, and every published file with its accuracy."""

import functools

from tables import table

import keras_vit
from keras_vit.checkpoints.releases import list_releases
from keras_vit.compat.initial_values import build_deferred
from keras_vit.models.costs import count_macs
from keras_vit.zoo import VARIANTS, constructor_name

SIZE = 224

_PAGE = """# Models

{count} models, each a name for `keras_vit.create_model` and a constructor of its own. Parameters are those with 1000
classes at {size} pixels; a multiply-accumulate (MAC) is two floating-point operations, counted for one image in
matrix products and convolutions. `keras-vit list` and `keras-vit info NAME` print the same.

{models}
## Published weights

`weights=` takes the short name, which selects the file of the nearest size, or the name of the file. *Top-1* is the
published accuracy on ImageNet's 50,000 validation images, in percent, with its source; a dash means that no figure is
known. Heads for ImageNet-21k have 21,843 classes.

{weights}"""


@functools.cache
def pages():
    models = table(("model", "constructor", "parameters", f"GMAC at {SIZE}", "numbers from"), _models())
    weights = table(("model", "`weights=`", "pixels", "top-1 %", "published by", "file"), _weights())
    return {"models.md": _PAGE.format(count=len(VARIANTS), size=SIZE, models=models, weights=weights)}


def _models():
    for name, variant in VARIANTS.items():
        model, _ = build_deferred(lambda name=name: keras_vit.create_model(name, image_size=SIZE))
        constructor = f"`keras_vit.{constructor_name(name)}`"
        yield name, constructor, f"{model.count_params():,}", f"{count_macs(model) / 1e9:.2f}", variant.source


def _weights():
    for release in list_releases():
        top1 = "-" if release.top1 is None else f"{release.top1:.1f}"
        yield (
            release.model,
            f"`{release.alias}`",
            str(release.image_size),
            top1,
            release.top1_source,
            f"`{release.path}`",
        )
