"""The images of a training run: opened once, compared with the model, and made into the data of `fit`."""

import dataclasses
import os

from keras_vit import checks
from keras_vit.data import TaskSource, eval_pipeline, from_directory, multi_crop_pipeline, task_pipeline, train_pipeline
from keras_vit.data.sources import ImageSource
from keras_vit.data.task_batches import rows_of
from keras_vit.training.recipe_checks import CROPPED, DATASETS, SELF_SUPERVISED, TASKS

_MOST_NAMED = 8  # classes in a message
_SAMPLED = 1000  # training images at most for the monitor of self-distillation


@dataclasses.dataclass(frozen=True)
class RunImages:
    """Hold the images of a run.

    Attributes:
        train: `ImageSource` to train on.
        validation: `ImageSource` to measure the accuracy on, or None.
    """

    train: ImageSource | TaskSource
    validation: ImageSource | TaskSource | None

    def size(self, recipe):
        """Return the number of training images; with keypoints, that of persons."""
        return len(rows_of(self.train, TASKS[recipe.loss].targets)) if recipe.loss in TASKS else self.train.size

    def fingerprints(self):
        """Return the fingerprints of the training and of the validation images; see `ImageSource.fingerprint`."""
        return {"data": self.train.fingerprint(), "validation": self.validation and self.validation.fingerprint()}

    def batches(self, recipe, preprocessing, devices, start_step, max_corrupt):
        """Return the training data from a step on, and the validation data or None.

        Args:
            recipe: `Recipe`; it states how images are drawn, augmented and batched.
            preprocessing: `Preprocessing` of the model.
            devices: `Devices`, which share the batches.
            start_step: number of the first batch.
            max_corrupt: see `train_pipeline`.
        """
        if recipe.loss in TASKS:
            return self._task_batches(recipe, preprocessing, devices, start_step, max_corrupt)
        common = {"dtype": recipe.input_dtype, "max_corrupt": max_corrupt}
        drawn = {name: getattr(recipe, name) for name in ("seed", "augment", "mix", "repeats")}
        pipeline = train_pipeline
        if recipe.loss == CROPPED:
            pipeline, drawn = multi_crop_pipeline, {"seed": recipe.seed, **(recipe.crops or {})}
        made, drawn = (preprocessing, recipe.batch_size), {"start_step": start_step, **drawn, **common}
        train = devices.dataset(lambda shard: pipeline(self.train, *made, shard=shard, **drawn))
        held_out = self.validation
        if recipe.loss == CROPPED and devices.workers == 1 and held_out is None:
            held_out = self.train.sample(_SAMPLED, recipe.seed)
        elif recipe.loss == CROPPED and devices.workers > 1 and held_out is not None:
            several = f"loss={CROPPED!r} and {devices.workers} processes"
            raise ValueError(f"validation must be None with {several}; got {held_out.size} images (use one process)")
        if held_out is None:
            return train, None
        return train, devices.dataset(lambda shard: eval_pipeline(held_out, *made, shard=shard, **common))

    def _task_batches(self, recipe, preprocessing, devices, start_step, max_corrupt):
        made = preprocessing, recipe.batch_size, TASKS[recipe.loss].targets
        common = {"max_objects": recipe.max_objects, "max_corrupt": max_corrupt}
        drawn = {"seed": recipe.seed, "augment": recipe.augment, "start_step": start_step}
        train = devices.dataset(lambda shard: task_pipeline(self.train, *made, shard=shard, **drawn, **common))
        if self.validation is None:
            return train, None
        once = dict.fromkeys(("shuffle", "repeat", "drop_remainder"), False)
        return train, devices.dataset(
            lambda shard: task_pipeline(self.validation, *made, shard=shard, **once, **common)
        )


def open_images(recipe, source, validation):
    """Return the `RunImages` of the arguments of `train`; for None, the images of the recipe.

    Raises:
        TypeError, ValueError, FileNotFoundError: see `train`.
    """
    if source is None:
        if recipe.dataset is None:
            raise ValueError(f"source must be given: recipe {recipe.name!r} has no images of its own")
        source, held_out = DATASETS[recipe.dataset]()
        validation = held_out if validation is None else validation
    given = {"source": source, "validation": validation}
    opened = {name: None if one is None else _open(name, one, recipe.loss in TASKS) for name, one in given.items()}
    images = RunImages(opened["source"], opened["validation"])
    if images.validation is not None and recipe.loss not in SELF_SUPERVISED:
        names, held_out = images.train.class_names, images.validation.class_names
        if held_out != names:
            raise ValueError(f"validation must have the classes {_shortened(names)}; got {_shortened(held_out)}")
    if images.validation is not None and recipe.loss == CROPPED:
        size, classes = images.validation.size, len(images.validation.class_names)
        if min(size, classes) < 2:
            raise ValueError(f"validation must have at least 2 images and 2 classes; got {size} and {classes}")
    return images


def _open(name, source, is_task):
    """Return the `ImageSource` of an argument, which may be a folder, or the `TaskSource`."""
    if is_task:
        return checks.check_instance(name, source, TaskSource, "a TaskSource, such as keras_vit.data.from_coco(...)")
    if isinstance(source, (str, os.PathLike)):
        return from_directory(checks.check_path(name, source))
    expected = "a folder of class folders or an ImageSource, such as from keras_vit.data.from_arrays"
    checks.check_instance(name, source, ImageSource, expected)
    if source.size == 0:
        raise ValueError(f"{name} must have images; got none")
    return source


def _shortened(names):
    names = list(names)
    return names if len(names) <= _MOST_NAMED else f"{len(names)} classes from {names[0]!r} to {names[-1]!r}"
