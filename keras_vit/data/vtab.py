"""VTAB-1k: tasks with 800 images to learn from, 200 to choose by and a whole test set; and such parts of any set.

Sources: Zhai et al. 2019, arXiv 1910.04867; the parts and label rules of its code, google-research/task_adaptation
(`task_adaptation/data/` at commit ed9b417, which defines train800, val200 and train800val200, and
`scripts/run_all_tasks.sh`, which names the tasks); the names and order of Table 9 of arXiv 2010.11929.
"""

import dataclasses
import fnmatch
from typing import Any

import numpy as np

from keras_vit import checks
from keras_vit.data.sources import ImageSource
from keras_vit.data.tfds import find_builder, from_tfds, prepare
from keras_vit.data.vtab_tasks import VTAB_TASKS
from keras_vit.typing import PathLike

_TRAIN, _VALIDATION = 800, 200


@dataclasses.dataclass(frozen=True)
class ThousandExamples:
    """A task to be learned from a thousand images.

    Attributes:
        train800: `ImageSource` to learn from while settings are chosen.
        val200: what they are chosen by.
        train1000: both, to learn from with the settings chosen.
        test: what the accuracy is reported on.
    """

    train800: ImageSource
    val200: ImageSource
    train1000: ImageSource
    test: ImageSource

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per label."""
        return self.train1000.class_names


def list_vtab_tasks(pattern: str = "*") -> list[str]:
    """Returns the names of the 19 tasks of VTAB, in the order of Table 9 of arXiv 2010.11929.

    Args:
        pattern: such as `"Clevr-*"`, which the names must match; upper and lower case differ.
    """
    return [name for name in VTAB_TASKS if fnmatch.fnmatchcase(name, pattern)]


def vtab_1k(task: str, data_dir: PathLike | None = None, dataset: Any = None) -> ThousandExamples:
    """The images of a task of VTAB-1k, from TensorFlow Datasets.

    The parts are those of the official code: train800 is `train[:800]`, val200 the first 200 images of its validation
    part, and the test part is whole; where the set has no such split, the code cuts it at a percentage of another, as
    `VTAB_TASKS` says. All of it is in the order in which TensorFlow Datasets wrote the records, which its version
    fixes. The official images are resized to 224 x 224 without a crop, and not augmented.

    What could not be checked against the original: the parts of DTD and DMLab are from copies of that code; and the
    versions are those that today's TensorFlow Datasets prepares, where the code asks for oxford_iiit_pet 3 (today 4,
    with corrupt images mended), kitti 3.1.0 and dmlab 2.0.0. Results from before that commit took the first 1000
    images of training and validation part together.

    A set that was not prepared in `data_dir` yet IS DOWNLOADED, as in `from_tfds`; Resisc45 and Retinopathy must be
    downloaded by hand first, as TensorFlow Datasets says.

    Args:
        task: one of `list_vtab_tasks()`.
        data_dir: where prepared sets lie; None is TensorFlow Datasets' default.
        dataset: another version of the task's set, by name, or a `tfds.core.DatasetBuilder` with its features; None
            takes the one of `VTAB_TASKS`.

    Returns:
        `ThousandExamples`.

    Raises:
        ImportError: when TensorFlow Datasets is not installed.
        ValueError: on an unknown task, a set of too few images or of other classes, and as `from_tfds`.
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
        raise ValueError(
            f"dataset must have the {row.classes} classes of {task}; "
            f"{builder.info.full_name} has {_few(found.class_names)}"
        )
    return found


def thousand_examples(source: ImageSource, test: ImageSource | None = None, seed: int = 0) -> ThousandExamples:
    """Cuts any set as VTAB-1k does: 800 images to learn from, 200 to choose by and the rest to test.

    The thousand are drawn without regard to their classes, as VTAB's are (its sets were shuffled when they were
    written), so that a rare class may be missing.

    Args:
        source: an `ImageSource` with lookup, such as of `from_directory` or `from_arrays`.
        test: the `ImageSource` to test on, with the same classes; None takes the images of `source` that were not
            drawn.
        seed: integer; the same seed draws the same images.

    Returns:
        `ThousandExamples`. Each part keeps the order of `source`.

    Raises:
        ValueError: on a source without lookup or with too few images, and a `test` of other classes.
    """
    needed = _TRAIN + _VALIDATION + (test is None)
    if source.size < needed:
        raise ValueError(f"source must hold at least {needed} images; got {source.size}")
    if test is not None and test.class_names != source.class_names:
        raise ValueError(
            f"test must have the classes of source; got {_few(test.class_names)} and {_few(source.class_names)}"
        )
    order = np.random.default_rng(checks.check_integer("seed", seed, minimum=0)).permutation(source.size)
    train, validation, rest = (np.sort(part) for part in np.split(order, [_TRAIN, _TRAIN + _VALIDATION]))
    return ThousandExamples(
        source.take(train),
        source.take(validation),
        source.take(np.concatenate([train, validation])),
        source.take(rest) if test is None else test,
    )


def _slice(builder, place, size=None):
    """The part of a split from a percentage on, in the words of TensorFlow Datasets; `size` images or all."""
    split, percent = place
    known = builder.info.splits[split].num_examples
    begin = percent * known // 100  # rounded down, as in the official code
    if size is not None and begin + size > known:
        raise ValueError(
            f"dataset must have {size} images from number {begin} of {split} on; "
            f"{builder.info.full_name} has {known} in {split}"
        )
    return f"{split}[{begin}:{'' if size is None else begin + size}]"


def _few(names):
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
