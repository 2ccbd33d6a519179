"""`few_shot`: few-shot accuracy of a model's frozen features."""

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
    """Result of `few_shot`; `str()` of it is a table.

    Attributes:
        accuracy: {shots: tuple with the accuracy on the test images, in [0, 1], for each seed}.
        seeds: the seeds of the draws, in that order.
        class_names: names of the classes.
        count: number of test images.
        layer: name of the layer that returned the features.
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
        """{shots: population standard deviation over the seeds}; 0 for one seed."""
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
        """Write a CSV file with one row per draw, atomically.

        Its header is `shots,seed,accuracy`.

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
    """Measure the few-shot accuracy of a model (arXiv 2010.11929, section 4.1).

    A ridge regression on the features is fitted in closed form to a few images per class and evaluated on all test
    images; see `fit_ridge` for the formula and `draw_shots` for the draw. Features are computed once per image, and
    only for the training images that a draw uses. The model is unchanged.

    Args:
        model: a model of this package, with or without a head; a keras model that contains exactly one, which is then
            measured on its own inputs; or another functional keras model, whose output is the feature.
        train: images to fit to: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of (model
            inputs, integer labels) in a constant order.
        test: images to measure on, of the same kinds. Classes are matched by name; the labels of a dataset refer to
            the classes of the other data.
        shots: numbers of training images per class, or one number.
        seeds: integers, 0 or above, or one; each seed draws different images.
        layer: name of the layer whose outputs are the features, such as `"block_05"`. None uses the input of the head.
            `FrozenFeatures` describes this for every kind of model, and how tokens and maps are averaged.
        l2: lambda of the regression, above 0; the features are standardised, so it does not depend on their scale.
        batch_size: images per batch; ignored for a test dataset.
        preprocessing: replaces `model.preprocessing` for a folder or source.
        verbose: whether to show progress bars.

    Returns:
        A `FewShot`.

    Raises:
        ValueError: if a class has fewer images than shots, the classes of train and test differ, an image cannot be
            read, or the features are not finite.
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
    """Run `few_shot` with a `FrozenFeatures` and the results of `open_labelled` and `check_draws`.

    `train` and `test` cache their labels, so they can be reused.
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
        raise ValueError(f"{name} must be one integer or several distinct ones; got {name}={values}")
    return values
