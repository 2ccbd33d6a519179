"""VTAB-1k: tasks with 800 training images, 200 validation images and a full test set; and such splits for other data.

Sources: Zhai et al. 2019, arXiv 1910.04867; the splits and label rules of google-research/task_adaptation
(`task_adaptation/data/` at commit ed9b417, which defines train800, val200 and train800val200, and
`scripts/run_all_tasks.sh`, which lists the tasks); the names and order of Table 9 of arXiv 2010.11929.
"""

import dataclasses
import fnmatch
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.data.sources import ImageSource
from keras_vit.data.tfds import LabelRule, find_builder, from_tfds, prepare
from keras_vit.files import read_table
from keras_vit.typing import PathLike, Tensor

_TRAIN, _VALIDATION = 800, 200
_CLEVR_DEPTHS = (8.0, 8.5, 9.0, 9.5, 10.0)  # in the units of `pixel_coords`
_KITTI_METRES = (8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
_VEHICLES = 3  # Car, Van and Truck are the first three object types of KITTI
_DSPRITES_CLASSES = 16


@dataclasses.dataclass(frozen=True)
class VtabTask:
    """Describe a task of VTAB.

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
    label: str | LabelRule
    validation: tuple[str, int]
    test: tuple[str, int]
    image: Callable[[Tensor], Tensor] | None = None


def _place(value, thresholds):
    """Return the number of thresholds below a value."""
    return tf.reduce_sum(tf.cast(value > tf.constant(thresholds, value.dtype), tf.int32))


def _closest_vehicle(example):
    """Return the distance (z, in metres) of the closest car, van or truck."""
    distances = tf.boolean_mask(example["objects"]["location"][:, 2], example["objects"]["type"] < _VEHICLES)
    return tf.reduce_min(tf.concat([distances, [_NO_VEHICLE]], axis=0))


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


_LABEL_RULES = {
    "clevr_count": LabelRule(
        {"objects": ["size"]},
        lambda example: tf.size(example["objects"]["size"]) - 3,
        tuple(f"{count} objects" for count in range(3, 11)),
    ),
    "clevr_distance": LabelRule(  # depth of the closest object
        {"objects": ["pixel_coords"]},
        lambda example: _place(tf.reduce_min(example["objects"]["pixel_coords"][:, 2]), _CLEVR_DEPTHS),
        ("closest object up to 8.0", "up to 8.5", "up to 9.0", "up to 9.5", "up to 10.0", "beyond 10.0"),
    ),
    "dsprites_location": _dsprites("label_x_position", 32),
    "dsprites_orientation": _dsprites("label_orientation", 40),
    "kitti_distance": LabelRule(
        {"objects": ["location", "type"]},
        lambda example: _place(_closest_vehicle(example), _KITTI_METRES),
        ("vehicle within 8 m", "vehicle within 20 m", "vehicle beyond 20 m", "no vehicle"),
    ),
}


def _task(name, group, dataset, classes, label, validation, test, source):
    """Return the `VtabTask` of a row of vtab.tsv; `source` is a file of task_adaptation."""
    parts = [(split, int(percent)) for split, percent in (part.split() for part in (validation, test))]
    image = _stretched if source == "dsprites.py" else None
    return VtabTask(name, group, dataset, int(classes), _LABEL_RULES.get(label, label), *parts, image)


VTAB_TASKS: dict[str, VtabTask] = {row["name"]: _task(**row) for row in read_table("data/vtab.tsv")}


@dataclasses.dataclass(frozen=True)
class ThousandExamples:
    """Hold a task with a thousand training and validation images.

    Attributes:
        train800: `ImageSource` to train on while settings are selected.
        val200: images to select the settings on.
        train1000: both, to train on with the selected settings.
        test: images to report the accuracy on.
    """

    train800: ImageSource
    val200: ImageSource
    train1000: ImageSource
    test: ImageSource

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return one name per label."""
        return self.train1000.class_names


def list_vtab_tasks(pattern: str = "*") -> list[str]:
    """Return the names of the 19 VTAB tasks.

    They are in the order of arXiv 2010.11929, Table 9.

    Args:
        pattern: shell-style pattern for the names, such as `"Clevr-*"`; case-sensitive.
    """
    return [name for name in VTAB_TASKS if fnmatch.fnmatchcase(name, pattern)]


def vtab_1k(task: str, data_dir: PathLike | None = None, dataset: Any = None) -> ThousandExamples:
    """Return the images of a VTAB-1k task from TensorFlow Datasets.

    The splits are those of the official code: train800 is `train[:800]`, val200 is the first 200 images of the
    validation split, and the test split is complete. If the set has no such split, the official code cuts one from
    another split at a percentage, see `VTAB_TASKS`. The images are in the order in which TensorFlow Datasets wrote the
    records; the version of the set fixes this order. The official code resizes images to 224 x 224 without a crop, and
    uses no augmentation.

    Not verified against the original: the splits of DTD and DMLab come from copies of that code. The versions are those
    that TensorFlow Datasets prepares today, while the official code requires oxford_iiit_pet 3 (today 4, with corrupt
    images repaired), kitti 3.1.0 and dmlab 2.0.0. Results from before commit ed9b417 of that code used the first 1000
    images of the training and validation splits combined.

    A set that is not prepared in `data_dir` yet IS DOWNLOADED, as in `from_tfds`. Download Resisc45 and Retinopathy
    manually first, as TensorFlow Datasets describes.

    Args:
        task: one of `list_vtab_tasks()`.
        data_dir: folder of prepared sets; None uses the default of TensorFlow Datasets.
        dataset: another version of the task's set, by name, or a `tfds.core.DatasetBuilder` with its features; None
            uses the one of `VTAB_TASKS`.

    Returns:
        `ThousandExamples`.

    Raises:
        ImportError: if TensorFlow Datasets is not installed.
        ValueError: on an unknown task, a set with too few images or other classes, and as in `from_tfds`.
    """
    row = VTAB_TASKS[checks.check_choice("task", task, VTAB_TASKS)]
    builder = find_builder(row.dataset if dataset is None else dataset, data_dir)
    prepare(builder)

    def source(split):
        encoded = from_tfds(builder, split, label_key=row.label)
        return encoded if row.image is None else encoded.map_images(row.image)

    train, validation = _slice(builder, ("train", 0), _TRAIN), _slice(builder, row.validation, _VALIDATION)
    parts = (train, validation, f"{train}+{validation}", _slice(builder, row.test))
    found = ThousandExamples(*map(source, parts))
    if len(found.class_names) != row.classes:
        raise ValueError(f"dataset must have the {row.classes} classes of {task}; got {_few(found.class_names)}")
    return found


def thousand_examples(source: ImageSource, test: ImageSource | None = None, seed: int = 0) -> ThousandExamples:
    """Split any set as VTAB-1k does.

    800 images are for training and 200 for validation; the rest are test images.

    The thousand images are drawn independently of their classes, as in VTAB (its sets were shuffled when they were
    written), so a rare class may be missing.

    Args:
        source: an `ImageSource` with lookup, such as from `from_directory` or `from_arrays`.
        test: the `ImageSource` to test on, with the same classes; None uses the remaining images of `source`.
        seed: integer; the same seed draws the same images.

    Returns:
        `ThousandExamples`. Each part keeps the order of `source`.

    Raises:
        ValueError: on a source without lookup or with too few images, and a `test` with other classes.
    """
    needed = _TRAIN + _VALIDATION + (test is None)
    if source.size < needed:
        raise ValueError(f"source must contain at least {needed} images; got {source.size}")
    if test is not None and test.class_names != source.class_names:
        raise ValueError(f"test must have the classes {_few(source.class_names)}; got {_few(test.class_names)}")
    order = np.random.default_rng(checks.check_integer("seed", seed, minimum=0)).permutation(source.size)
    train, validation, rest = (np.sort(part) for part in np.split(order, [_TRAIN, _TRAIN + _VALIDATION]))
    train800, val200, train1000 = map(source.take, (train, validation, np.concatenate([train, validation])))
    return ThousandExamples(train800, val200, train1000, source.take(rest) if test is None else test)


def _slice(builder, place, size=None):
    """Return `size` images (None: all) of a split from a percentage on, as a TensorFlow Datasets expression."""
    split, percent = place
    known = builder.info.splits[split].num_examples
    begin = percent * known // 100  # rounded down, as in the official code
    if size is not None and begin + size > known:
        raise ValueError(f"dataset {builder.info.full_name} must have {begin + size} images in {split}; it has {known}")
    return f"{split}[{begin}:{'' if size is None else begin + size}]"


def _few(names):
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
