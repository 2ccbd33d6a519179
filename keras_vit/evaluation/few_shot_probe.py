"""FewShotProbe: a keras callback that measures few-shot accuracy during training."""

import typing
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data.sources import LabelledData
from keras_vit.evaluation.few_shot import FewShot, check_draws, measure
from keras_vit.evaluation.frozen_features import FrozenFeatures
from keras_vit.evaluation.labelled import open_labelled
from keras_vit.evaluation.ridge import DEFAULT_L2


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

    At the end of an epoch with a measurement, the logs (and so the progress bar and history) contain the mean accuracy
    of its last measurement as `fewshot_5` and so on, and the standard deviation over the seeds as `fewshot_5_std`. As
    with `validation_freq`, the history has no entry for other epochs. Callbacks that read these, such as
    `ModelCheckpoint(monitor="fewshot_5", mode="max")`, must come after this one in the list.

    Args:
        train, test: images to fit to and to measure on, as in `few_shot`. Labels are read once, images for every
            measurement: call `cached()` on a slow source.
        every_epochs: epochs between two measurements. If this and `every_steps` are None, every epoch is measured.
        every_steps: steps between two measurements; if `every_epochs` is None, only these are made. With
            `steps_per_execution`, a measurement waits for the end of an execution.
        shots, seeds, layer, l2, batch_size, preprocessing: as in `few_shot`.
        model: model to measure instead of the trained one, such as one of two models inside it.

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
        self._data, self._preparation = {"train": train, "test": test}, (preprocessing, batch_size)
        self._layer, self._draws, self._l2 = layer, check_draws(shots, seeds), checks.check_positive("l2", l2)
        self._given_model, self._opened = model, (None, None)
        self._epoch, self._step, self._before, self._latest = 0, 0, 0, None
        self.measurements: list[Measurement] = []

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The measurements as a table: one dict per measurement.

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
        result = measure(frozen, *self._open(frozen), *self._draws, self._l2, verbose=False)
        self._latest = Measurement(self._epoch, self._step, result)
        self.measurements.append(self._latest)

    def _open(self, frozen):
        """Return the data, opened once per model."""
        model, opened = self._opened
        if model is not frozen.model:
            opened = open_labelled(self._data, frozen, *self._preparation)
            self._opened = frozen.model, opened
        return opened


def _logs(result):
    mean, std = result.mean, result.std
    return {name: value for n in mean for name, value in ((f"fewshot_{n}", mean[n]), (f"fewshot_{n}_std", std[n]))}
