"""The page of the models: the zoo's table, what each costs, and every published file with its accuracy."""

import functools

from tables import table

from keras_vit.checkpoints.foreign_names import foreign_names
from keras_vit.checkpoints.releases import list_releases
from keras_vit.variants import FAMILIES, VARIANTS
from keras_vit.zoo import constructor_name

_PAGE = """# Models

{count} models, each a name for `keras_vit.create_model` and a constructor of its own. Parameters and cost are those
with the default arguments; a multiply-accumulate (MAC) is two floating-point operations, counted for one image in
matrix products and convolutions. `keras-vit list` and `keras-vit info NAME` print the same.

{models}
## Published weights

`weights=` takes the short name, which selects the file of the nearest size, or the name of the file. *Top-1* is the
published accuracy on ImageNet's 50,000 validation images, in percent, with its source; a dash means that no figure is
known. Heads for ImageNet-21k have 21,843 classes.

{weights}
## Families

The licence is that of the published weights. DINOv3's downloads require that you accept its licence on its page first.

{families}
## Names in other libraries

`keras_vit.create_model` and `keras_vit.load` also take these names, with the weights of `pretrained=True`.

{foreign}"""


@functools.cache
def pages():
    models = table(("model", "constructor", "parameters", "pixels", "GMAC", "result", "numbers from"), _models())
    families = table(("family", "licence", "published in"), ((f.title, f.licence, f.source) for f in FAMILIES.values()))
    names = ((f"`{row.name}`", row.variant, str(row.image_size)) for row in foreign_names())
    foreign = table(("name", "model", "pixels"), names)
    weights = table(("model", "`weights=`", "pixels", "top-1 %", "published by", "file"), _weights())
    parts = {"models": models, "weights": weights, "families": families, "foreign": foreign}
    return {"models.md": _PAGE.format(count=len(VARIANTS), **parts)}


def _models():
    for name, variant in VARIANTS.items():
        constructor, cost = f"`keras_vit.{constructor_name(name)}`", f"{variant.macs / 1e9:.2f}"
        size, result = str(variant.image_size), variant.result or "-"
        yield name, constructor, f"{variant.parameters:,}", size, cost, result, variant.source


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
