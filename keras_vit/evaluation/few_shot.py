"""Few-shot accuracy of a model's frozen features: `few_shot`, and the callback `FewShotProbe`."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit import checks, files
from keras_vit.config import Preprocessing
from keras_vit.data.sources import LabelledData
from keras_vit.evaluation.labelled import check_labels, match_labels, open_labelled
from keras_vit.evaluation.linear_probe import DEFAULT_L2, FrozenFeatures, draw_shots, fit_ridge
from keras_vit.files import aligned
from keras_vit.typing import PathLike


@dataclasses.dataclass(frozen=True)
class FewShot:
    """Hold the result of `few_shot`; `str()` of it is a table.

    Attributes:
        accuracy: {shots: tuple with the accuracy on the test images, in [0, 1], for each seed}.
        seeds: the seeds of the draws, in the order of the accuracies.
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
        """Return {shots: mean accuracy over the seeds}."""
        return {shots: float(np.mean(found)) for shots, found in self.accuracy.items()}

    @property
    def std(self) -> dict[int, float]:
        """Return {shots: population standard deviation over the seeds}.

        It is 0 for one seed."""
        return {shots: float(np.std(found)) for shots, found in self.accuracy.items()}

    def __str__(self):
        rows = [("shots", "mean %", "std", *(f"seed {seed}" for seed in self.seeds))]
        for shots, found in self.accuracy.items():
            rows.append((shots, *(f"{100 * share:.2f}" for share in (self.mean[shots], self.std[shots], *found))))
        about = f"{self.count} images of {len(self.class_names)} classes, features of {self.layer}, l2={self.l2:g}"
        return f"{aligned(rows)}\n{about}"

    def write_csv(self, path: PathLike) -> None:
        """Write a CSV file with one row per draw, atomically.

        Its header is `shots,seed,accuracy`.

        Args:
            path: path of the file; its folder must exist.
        """
        lines = ["shots,seed,accuracy"]
        for shots, found in self.accuracy.items():
            lines += [f"{shots},{seed},{accuracy}" for seed, accuracy in zip(self.seeds, found, strict=True)]
        text = "\n".join(lines) + "\n"
        files.replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8", newline="\n"))


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
            measured alone, without the layers around it; or another functional keras model, whose output is the
            feature.
        train: images to fit to: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of (model
            inputs, integer labels) in a constant order.
        test: images to evaluate on, of the same kinds. Classes are matched by name; the labels of a dataset refer to
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
    shots, seeds, l2 = _check_draws(shots, seeds, l2)
    frozen = FrozenFeatures(model, layer)
    opened, measured = open_labelled({"train": train, "test": test}, frozen.model, preprocessing, batch_size)
    return _few_shot(frozen, opened, measured, shots, seeds, l2, verbose)


def _check_draws(shots, seeds, l2):
    """Return the arguments of `few_shot`: `shots` and `seeds` as tuples of integers, and `l2`."""
    shots, seeds = checks.check_distinct("shots", shots), checks.check_distinct("seeds", seeds, minimum=0)
    return shots, seeds, checks.check_positive("l2", l2)


def _few_shot(frozen, train, test, shots, seeds, l2, verbose):
    """Run `few_shot` with a `FrozenFeatures` and the results of `open_labelled` and `_check_draws`.

    `train` and `test` cache their labels, so they can be reused.
    """
    class_names, places = match_labels(train, test)
    labels = check_labels("train", train.labels, len(class_names))
    draws = [draw_shots(labels, class_names, max(shots), seed) for seed in seeds]
    needed = np.unique(draws)
    x, _ = frozen.read(train, needed, verbose=verbose)
    x_test, y_test = frozen.read(test, verbose=verbose)
    y_test = places[check_labels("test", y_test, len(places))]

    def accuracy_of(draw):
        learned = draw.reshape(-1)
        ridge = fit_ridge(x[np.searchsorted(needed, learned)], labels[learned], len(class_names), l2)
        return float((ridge.predict(x_test) == y_test).mean())

    accuracy = {count: tuple(accuracy_of(draw[:, :count]) for draw in draws) for count in shots}
    return FewShot(accuracy, seeds, class_names, len(y_test), frozen.layer, l2)


class Measurement(typing.NamedTuple):
    """One measurement of a `FewShotProbe`.

    Attributes:
        epoch: epoch of the measurement, from 0.
        step: number of training steps of this fit before the measurement.
        result: the `FewShot`.
    """

    epoch: int
    step: int
    result: FewShot


class FewShotProbe(keras.callbacks.Callback):
    """Measure few-shot accuracy during training; see `few_shot`.

    Training is not affected.

    At the end of an epoch with a measurement, the logs (and so the progress bar and history) contain the last one: the
    mean accuracy as `fewshot_5` and so on, and the standard deviation over the seeds as `fewshot_5_std`. As with
    `validation_freq`, the history has no entry for other epochs. Callbacks that read these, such as
    `ModelCheckpoint(monitor="fewshot_5", mode="max")`, must come after this one in the list.

    Args:
        train, test: images to fit to and to evaluate on, as in `few_shot`. Labels are read once, images for every
            measurement: call `cached()` on a slow source.
        every_epochs: epochs between two measurements. If this and `every_steps` are None, every epoch is measured.
        every_steps: steps between two measurements; if `every_epochs` is None, only these measurements are made. With
            `steps_per_execution`, a measurement waits for the end of an execution.
        shots, seeds, layer, l2, batch_size, preprocessing: as in `few_shot`.
        model: model to measure instead of the trained one, such as one of several models inside it.

    Attributes:
        measurements: list with one `Measurement` per measurement of all fits.

    Raises:
        ValueError: on an argument out of range; from `fit`, as in `few_shot`.
    """

    def __init__(
        self,
        train: LabelledData,
        test: LabelledData,
        *,
        every_epochs: int | None = None,
        every_steps: int | None = None,
        shots: int | Sequence[int] = (1, 5, 10, 25),
        seeds: int | Sequence[int] = (0, 1, 2),
        layer: str | None = None,
        l2: float = DEFAULT_L2,
        batch_size: int = 32,
        preprocessing: Preprocessing | None = None,
        model: keras.Model | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("every_epochs", every_epochs), ("every_steps", every_steps)):
            if value is not None:
                checks.check_integer(name, value)
        self._every_epochs = 1 if every_epochs is None and every_steps is None else every_epochs
        self._every_steps = every_steps
        self._layer, self._draws, self._given_model = layer, _check_draws(shots, seeds, l2), model
        self._data, self._preparation = {"train": train, "test": test}, (preprocessing, batch_size)
        self._opened_for: keras.Model | None = None
        self._epoch, self._step, self._before, self._latest = 0, 0, 0, None
        self.measurements: list[Measurement] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the measurements as a table: one dict per measurement.

        A dict has `epoch`, `step` and the logged values.
        """
        return [{"epoch": made.epoch, "step": made.step, **_logs(made.result)} for made in self.measurements]

    def on_train_begin(self, logs=None):
        self._step, self._before = 0, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._before, self._latest = epoch, self._step, None

    def on_train_batch_end(self, batch, logs=None):
        done, self._step = self._step, self._before + batch + 1
        if self._every_steps is not None and self._step // self._every_steps > done // self._every_steps:
            self._measure()

    def on_epoch_end(self, epoch, logs=None):
        if self._every_epochs is not None and (epoch + 1) % self._every_epochs == 0:
            self._measure()
        if self._latest is not None and logs is not None:
            logs.update(_logs(self._latest.result))

    def _measure(self):
        if self._latest is not None and self._latest.step == self._step:
            return  # the last step of the epoch is already measured
        frozen = FrozenFeatures(self.model if self._given_model is None else self._given_model, self._layer)
        if self._opened_for is not frozen.model:  # the data are opened once per model
            self._opened = open_labelled(self._data, frozen.model, *self._preparation)
            self._opened_for = frozen.model
        result = _few_shot(frozen, *self._opened, *self._draws, verbose=False)
        self._latest = Measurement(self._epoch, self._step, result)
        self.measurements.append(self._latest)


def _logs(result):
    mean, std = result.mean, result.std
    return {name: value for n in mean for name, value in ((f"fewshot_{n}", mean[n]), (f"fewshot_{n}_std", std[n]))}
