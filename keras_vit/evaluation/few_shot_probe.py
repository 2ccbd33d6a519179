"""FewShotProbe: few-shot accuracy while a model trains, as a keras callback."""

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
        epoch: number of the epoch, from 0, at whose end or within which it was made.
        step: training steps of this fit up to then.
        result: the `FewShot`.
    """

    epoch: int
    step: int
    result: FewShot


class FewShotProbe(keras.callbacks.Callback):
    """Measure the few-shot accuracy of a model while it trains; see `few_shot`, which changes nothing of it.

    After an epoch with a measurement, the logs, and so progress bar and history, have the mean accuracy of its last
    one as `fewshot_5` and so on, and its standard deviation over the seeds as `fewshot_5_std` (`few_shot.std`). As with
    `validation_freq`, the history has no entry for other epochs. Callbacks that read these, such as
    `ModelCheckpoint(monitor="fewshot_5", mode="max")`, stand behind this one in the list.

    Args:
        train, test: images to learn from and to measure on, as for `few_shot`. The labels are read once, the images
            that are needed for every measurement: a source that is slow to read is worth a `cached()`.
        every_epochs: measure at the end of every so many epochs. Without it and `every_steps`, of every epoch.
        every_steps: measure after every so many steps besides, or instead where `every_epochs` is None; at the end of
            an execution of several steps.
        shots, seeds, layer, l2, batch_size, preprocessing: as for `few_shot`.
        model: what to measure instead of the model that is trained: such as one of two that it contains.

    Attributes:
        measurements: list of a `Measurement` for each that was made, of all fits together.

    Raises:
        ValueError: on an argument out of range; from `fit`, what `few_shot` raises.
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
        """The measurements as a table: a dict per measurement with `epoch`, `step` and the names of the logs."""
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
            return  # the last step of the epoch was measured just now
        frozen = FrozenFeatures(self.model if self._given_model is None else self._given_model, self._layer)
        result = measure(frozen, *self._open(frozen), *self._draws, self._l2, verbose=False)
        self._latest = Measurement(self._epoch, self._step, result)
        self.measurements.append(self._latest)

    def _open(self, frozen):
        """The images, opened once for the same model."""
        model, opened = self._opened
        if model is not frozen.model:
            opened = open_labelled(self._data, frozen, *self._preparation)
            self._opened = frozen.model, opened
        return opened


def _logs(result):
    mean, std = result.mean, result.std
    return {name: value for n in mean for name, value in ((f"fewshot_{n}", mean[n]), (f"fewshot_{n}_std", std[n]))}
