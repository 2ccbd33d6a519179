"""The table of the 19 VTAB tasks: their sets, labels and splits. Sources: see vtab.py."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.tfds import LabelRule
from keras_vit.typing import Tensor

_CLEVR_DEPTHS = (8.0, 8.5, 9.0, 9.5, 10.0)  # in the units of `pixel_coords`
_KITTI_METRES = (8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
_VEHICLES = 3  # Car, Van and Truck are the first kinds of KITTI
_DSPRITES_CLASSES = 16


@dataclasses.dataclass(frozen=True)
class VtabTask:
    """A task of VTAB.

    Attributes:
        name: as in Table 9 of arXiv 2010.11929.
        group: `"natural"`, `"specialized"` or `"structured"`.
        dataset: name in TensorFlow Datasets, with the supported versions.
        classes: number of classes.
        label: feature of the label, or the `LabelRule` that computes it.
        validation: `(split, percent)`: the validation part starts at this percentage of the split; the official code
            rounds the number of images down.
        test: `(split, percent)`: the test part starts at this percentage of the split and ends with it.
        image: function from the encoded image to pixels, if its pixel values are not 0 to 255; else None.
    """

    name: str
    group: str
    dataset: str
    classes: int
    label: str | LabelRule = "label"
    validation: tuple[str, int] = ("validation", 0)
    test: tuple[str, int] = ("test", 0)
    image: Callable[[Tensor], Tensor] | None = None


def _place(value, thresholds):
    """Return the number of thresholds below a value."""
    return tf.reduce_sum(tf.cast(value > tf.constant(thresholds, value.dtype), tf.int32))


def _clevr_count():
    """Number of objects, 3 to 10."""
    return LabelRule(
        {"objects": ["size"]},
        lambda example: tf.size(example["objects"]["size"]) - 3,
        tuple(f"{count} objects" for count in range(3, 11)),
    )


def _clevr_distance():
    """Depth of the closest object, in six ranges."""
    names = (f"closest object up to {_CLEVR_DEPTHS[0]}", *(f"up to {depth}" for depth in _CLEVR_DEPTHS[1:]))
    return LabelRule(
        {"objects": ["pixel_coords"]},
        lambda example: _place(tf.reduce_min(example["objects"]["pixel_coords"][:, 2]), _CLEVR_DEPTHS),
        (*names, f"beyond {_CLEVR_DEPTHS[-1]}"),
    )


def _kitti_distance():
    """Distance (z, in metres) of the closest car, van or truck, in three ranges; the fourth class has none."""

    def label(example):
        is_vehicle = example["objects"]["type"] < _VEHICLES
        distances = tf.boolean_mask(example["objects"]["location"][:, 2], is_vehicle)
        return _place(tf.reduce_min(tf.concat([distances, [_NO_VEHICLE]], axis=0)), _KITTI_METRES)

    names = ("vehicle within 8 m", "vehicle within 20 m", "vehicle beyond 20 m", "no vehicle")
    return LabelRule({"objects": ["location", "type"]}, label, names)


def _dsprites(feature, values):
    """Return the rule for a dSprites factor with `values` values; neighbouring values form 16 classes."""
    joined = [[v for v in range(values) if v * _DSPRITES_CLASSES // values == n] for n in range(_DSPRITES_CLASSES)]
    return LabelRule(
        {feature: True},
        lambda example: example[feature] * _DSPRITES_CLASSES // values,
        tuple(f"{feature.removeprefix('label_')} {group[0]} to {group[-1]}" for group in joined),
    )


def _stretched(encoded):
    """Decode and scale to 0..255: dSprites stores the pixel values 0 and 1."""
    return tf.io.decode_png(encoded, channels=1) * tf.constant(255, tf.uint8)


_NATURAL, _SPECIALIZED, _STRUCTURED = "natural", "specialized", "structured"
_CLEVR: dict[str, Any] = {"dataset": "clevr:3.*.*", "validation": ("train", 90), "test": ("validation", 0)}
_DSPRITES: dict[str, Any] = {
    "dataset": "dsprites:2.*.*",
    "classes": _DSPRITES_CLASSES,
    "validation": ("train", 80),
    "test": ("train", 90),
    "image": _stretched,
}
_SMALLNORB: dict[str, Any] = {"dataset": "smallnorb:2.*.*", "validation": ("test", 0), "test": ("test", 50)}

_ROWS = (
    VtabTask("Caltech", _NATURAL, "caltech101:3.*.*", 102, validation=("train", 90)),
    VtabTask("CIFAR-100", _NATURAL, "cifar100:3.*.*", 100, validation=("train", 90)),
    VtabTask("DTD", _NATURAL, "dtd:3.*.*", 47),
    VtabTask("Flowers", _NATURAL, "oxford_flowers102:2.*.*", 102),
    VtabTask("Pets", _NATURAL, "oxford_iiit_pet:4.*.*", 37, validation=("train", 80)),
    VtabTask("Sun397", _NATURAL, "sun397/tfds:4.*.*", 397),
    VtabTask("SVHN", _NATURAL, "svhn_cropped:3.*.*", 10, validation=("train", 90)),
    VtabTask("Camelyon", _SPECIALIZED, "patch_camelyon:2.*.*", 2),
    VtabTask("EuroSAT", _SPECIALIZED, "eurosat/rgb:2.*.*", 10, validation=("train", 60), test=("train", 80)),
    VtabTask("Resisc45", _SPECIALIZED, "resisc45:3.*.*", 45, validation=("train", 60), test=("train", 80)),
    VtabTask("Retinopathy", _SPECIALIZED, "diabetic_retinopathy_detection/btgraham-300:3.*.*", 5),
    VtabTask("Clevr-Count", _STRUCTURED, classes=8, label=_clevr_count(), **_CLEVR),
    VtabTask("Clevr-Dist", _STRUCTURED, classes=6, label=_clevr_distance(), **_CLEVR),
    VtabTask("DMLab", _STRUCTURED, "dmlab:2.*.*", 6),
    VtabTask("dSpr-Loc", _STRUCTURED, label=_dsprites("label_x_position", 32), **_DSPRITES),
    VtabTask("dSpr-Ori", _STRUCTURED, label=_dsprites("label_orientation", 40), **_DSPRITES),
    VtabTask("KITTI", _STRUCTURED, "kitti:3.*.*", 4, label=_kitti_distance()),
    VtabTask("sNORB-Azim", _STRUCTURED, classes=18, label="label_azimuth", **_SMALLNORB),
    VtabTask("sNORB-Elev", _STRUCTURED, classes=9, label="label_elevation", **_SMALLNORB),
)

VTAB_TASKS: dict[str, VtabTask] = {row.name: row for row in _ROWS}
