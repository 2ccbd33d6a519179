"""`few_shot`: how well a few images of each class suffice to tell classes apart by a model's frozen features."""

import csv
import dataclasses
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import checks, files
from keras_vit.config import Preprocessing
from keras_vit.data.sources import LabelledData
from keras_vit.evaluation.frozen_features import FrozenFeatures
from keras_vit.evaluation.labelled import check_labels, match_labels, open_labelled
from keras_vit.evaluation.ridge import DEFAULT_L2, fit_ridge
from keras_vit.evaluation.shots import draw_shots
from keras_vit.typing import PathLike


@dataclasses.dataclass(frozen=True)
class FewShot:
    """What `few_shot` found; `str()` of it is a table.

    Attributes:
        accuracy: {shots: tuple of one share of the test images, in [0, 1], per seed}.
        seeds: the seeds of the draws, in that order.
        class_names: names of the classes.
        count: number of test images.
        layer: name of the layer that gave the features.
        l2: lambda of the ridge regression.
    """

    accuracy: dict[int, tuple[float, ...]]
    seeds: tuple[int, ...]
    class_names: tuple[str, ...]
    count: int
    layer: str
    l2: float

    @property
    def mean(self) -> dict[int, float]:
        """{shots: mean accuracy over the seeds}."""
        return {shots: float(np.mean(found)) for shots, found in self.accuracy.items()}

    @property
    def std(self) -> dict[int, float]:
        """{shots: population standard deviation of the accuracy over the seeds}; 0 of one seed."""
        return {shots: float(np.std(found)) for shots, found in self.accuracy.items()}

    def __str__(self):
        mean, std = self.mean, self.std
        head = ("shots", "mean %", "std", *(f"seed {seed}" for seed in self.seeds))
        rows = [head]
        for shots, found in self.accuracy.items():
            numbers = (mean[shots], std[shots], *found)
            rows.append((str(shots), *(f"{100 * number:.2f}" for number in numbers)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        about = f"{self.count} images of {len(self.class_names)} classes, features of {self.layer}, l2={self.l2:g}"
        return "\n".join([*lines, about])

    def write_csv(self, path: PathLike) -> None:
        """Write a row `shots,seed,accuracy` per draw, after a line with these names; the file is replaced whole.

        Args:
            path: of the file; its folder must exist.
        """
        rows = [
            (shots, seed, accuracy)
            for shots, found in self.accuracy.items()
            for seed, accuracy in zip(self.seeds, found, strict=True)
        ]

        def write(partial):
            with open(partial, "w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([("shots", "seed", "accuracy"), *rows])

        files.replace_file(path, write)


def few_shot(
    model: keras.Model,
    train: LabelledData,
    test: LabelledData,
    shots: int | Sequence[int] = (1, 5, 10, 25),
    seeds: int | Sequence[int] = (0, 1, 2),
    layer: str | None = None,
    l2: float = DEFAULT_L2,
    batch_size: int = 32,
    preprocessing: Preprocessing | None = None,
    verbose: bool = False,
) -> FewShot:
    """Measure a model by the few-shot accuracy of arXiv 2010.11929, section 4.1.

    A ridge regression of its features, whose closed form needs no training, learns from a few images of each class
    and is measured on all test images; see `fit_ridge` for the formula, `draw_shots` for how images are drawn. The
    features of an image are computed once, and only of those train images that a draw needs. Nothing of the model
    is changed.

    Args:
        model: a model of this package, with or without a head; a larger keras model with exactly one inside, which is
            the one that is measured, on its own inputs; or a functional keras model of another package, whose output
            is the feature.
        train: images to learn from: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of
            (inputs as the model takes them, integer labels) that gives them in the same order every time.
        test: images to measure on, of the same kinds. Classes are matched by their names; the labels of a dataset
            are the numbers of the other data's classes.
        shots: numbers of images per class to learn from, or one of them.
        seeds: integers from 0, or one: each draws images of its own.
        layer: name of the layer whose outputs are the features, such as `"block_05"`. None takes what the head reads;
            `FrozenFeatures` says what that is for every kind of model, and that the mean over the patches is taken of
            tokens and maps.
        l2: lambda of the regression, above 0; the features are standardised, so that it does not depend on their scale.
        batch_size: images per batch; a test dataset has its own.
        preprocessing: what to use instead of `model.preprocessing` on a folder or source.
        verbose: shows progress bars.

    Returns:
        A `FewShot`.

    Raises:
        ValueError: when a class has fewer images than shots, the classes of both differ, an image cannot be read,
            or the features are not finite.
    """
    checks.check_flag("verbose", verbose)
    shots, seeds = check_draws(shots, seeds)
    frozen = FrozenFeatures(model, layer)
    opened, measured = open_labelled({"train": train, "test": test}, frozen, preprocessing, batch_size)
    return measure(frozen, opened, measured, shots, seeds, l2, verbose)


def check_draws(shots, seeds):
    """Return `shots` and `seeds` of `few_shot` as tuples of integers."""
    return _distinct("shots", shots, minimum=1), _distinct("seeds", seeds, minimum=0)


def measure(frozen, train, test, shots, seeds, l2, verbose):
    """Do what `few_shot` says with a `FrozenFeatures`, what `open_labelled` has opened and what `check_draws` gives.

    `train` and `test` remember their labels: opened once they serve many times.
    """
    checks.check_positive("l2", l2)
    class_names, places = match_labels(train, test)
    labels = check_labels("train", train.labels, len(class_names))
    draws = [draw_shots(labels, class_names, max(shots), seed) for seed in seeds]
    needed = np.unique(draws)
    steps, test_steps = train.steps(len(needed)), test.steps()
    read = frozen.reader(compiled=test_steps is None or steps + test_steps > 2)
    x, _ = read(train.batches(needed), steps, verbose)
    x_test, y_test = read(test.batches(), test_steps, verbose)
    y_test = places[check_labels("test", y_test, len(places))]

    def accuracy_of(draw):
        learned = draw.reshape(-1)
        ridge = fit_ridge(x[np.searchsorted(needed, learned)], labels[learned], len(class_names), l2)
        return float((ridge.predict(x_test) == y_test).mean())

    accuracy = {count: tuple(accuracy_of(draw[:, :count]) for draw in draws) for count in shots}
    return FewShot(accuracy, seeds, class_names, len(y_test), frozen.layer, float(l2))


def _distinct(name, values, minimum):
    values = tuple(values) if isinstance(values, (tuple, list, range)) else (values,)
    values = tuple(checks.check_integer(name, value, minimum) for value in values)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name} must be one integer or several, each once; got {name}={values}")
    return values
