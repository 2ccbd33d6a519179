"""Progress reports of a run: values in the progress bar, tables of steps and epochs, and the best model."""

import csv
import io
import os
import pathlib
import sys
import time

import keras
import numpy as np

from keras_vit import checks
from keras_vit.compat.saved_objects import learning_rate_at
from keras_vit.logs import LOGGER
from keras_vit.training.checkpoint_files import disk_errors, write_atomically
from keras_vit.training.saving import save_model

_WAIT = 30  # seconds of training before the speed is stable enough for an estimate
_WORTH_TELLING = 90  # seconds; shorter estimates are not logged
_UNITS = (("minutes", 60, 100), ("hours", 3600, 48), ("days", 86400, float("inf")))  # name, seconds, used below


class Progress(keras.callbacks.Callback):
    """Add `learning_rate` and `images_per_second` to the logs.

    It must come before the callbacks that show these values. The speed is the mean over the epoch without its first
    call, which compiles. The learning rate is that of the last step.

    Args:
        batch_size: images per step.
        steps_per_epoch: steps of an epoch.
    """

    def __init__(self, batch_size, steps_per_epoch):
        super().__init__()
        self._batch_size, self._steps_per_epoch = batch_size, steps_per_epoch

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._first, self._values = epoch, None, {}
        self._rate = learning_rate_at(self.model.optimizer)
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now, done = time.perf_counter(), batch + 1
        first, since = self._first or (done - self.model.steps_per_execution, self._begin)
        self._values = {
            "learning_rate": self._rate(self._epoch * self._steps_per_epoch + batch),
            "images_per_second": (done - first) * self._batch_size / (now - since),
        }
        self._first = self._first or (done, now)
        logs.update(self._values)

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self._values)


class TimeLeft(keras.callbacks.Callback):
    """Log once, after half a minute of training, how long the remaining steps will take.

    It must come after `Progress`.

    Args:
        batch_size: images per step.
        steps_per_epoch: steps of an epoch.
        epochs: of the whole run.
        validates: whether every epoch ends with a validation, whose duration is not included.
    """

    def __init__(self, batch_size, steps_per_epoch, epochs, validates):
        super().__init__()
        self._batch_size, self._steps_per_epoch, self._epochs = batch_size, steps_per_epoch, epochs
        self._besides = ", not counting validation" if validates else ""

    def on_train_begin(self, logs=None):
        self._begin, self._is_told = None, False

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self._begin = self._begin or now  # the first call compiles
        if self._is_told or now - self._begin < _WAIT:
            return
        self._is_told = True
        steps = (self._epochs - self._epoch) * self._steps_per_epoch - batch - 1
        speed = logs["images_per_second"]
        seconds = steps * self._batch_size / speed
        if seconds >= _WORTH_TELLING:
            if self.params["verbose"] == 1:  # end the line of Keras's progress bar
                sys.stdout.write("\n")
                sys.stdout.flush()
            pace = f"{speed:,.{0 if speed >= 10 else 1}f} images per second"
            LOGGER.info(f"about {_duration(seconds)} left at {pace}{self._besides}")


class StepTable(keras.callbacks.Callback):
    """Write a CSV file with one row per step, or per call of several steps: step, epoch and the current logs.

    Keras's loss and accuracy are means over the epoch so far. A resumed run repeats the steps since its checkpoint; the
    old rows of these steps are removed first, so that every step appears once.

    Args:
        path: of the file.
        resume: the `Resume` of the same fit, which must come after this one among the callbacks.
        steps_per_epoch: steps of an epoch.
    """

    def __init__(self, path, resume, steps_per_epoch):
        super().__init__()
        self._path, self._resume, self._steps_per_epoch = pathlib.Path(path), resume, steps_per_epoch

    def on_train_begin(self, logs=None):
        self._step = self._resume.step
        self._columns, rows = _rows_until(self._path, self._step)
        if self._columns is not None:
            write_atomically(self._path, lambda path: path.write_text("".join(rows), encoding="utf-8"))

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        step = self._epoch * self._steps_per_epoch + batch + 1
        if step <= self._step:
            return  # a run that resumes at the end of an epoch reports its last step again
        self._step = step
        row = {"step": step, "epoch": self._epoch + 1, **logs}
        new = self._columns is None
        self._columns = self._columns or list(row)
        text = _csv_text(self._columns, [row], header=new)
        with disk_errors(self._path), open(self._path, "w" if new else "a", encoding="utf-8") as file:
            file.write(text)


class EpochTable(keras.callbacks.Callback):
    """Rewrite a CSV file with one row per epoch: epoch, step and the logs at its end.

    Args:
        path: of the file.
        steps_per_epoch: steps of an epoch.
    """

    def __init__(self, path, steps_per_epoch):
        super().__init__()
        self._path, self._steps_per_epoch = path, steps_per_epoch

    def on_epoch_end(self, epoch, logs=None):
        history = {name: [*self.model.history.history.get(name, ()), value] for name, value in logs.items()}
        rows = history_rows(history, self._steps_per_epoch)
        text = _csv_text(list(rows[0]), rows)
        write_atomically(self._path, lambda path: path.write_text(text, encoding="utf-8"))


class BestModel(keras.callbacks.Callback):
    """Save the model after every epoch whose `merit` is higher than in all epochs before.

    Args:
        path: of the `.keras` file.
        model: the model to save: the trained one, or the one inside it.
    """

    def __init__(self, path, model):
        super().__init__()
        self._path, self._saved_model = path, model

    def on_epoch_end(self, epoch, logs=None):
        before = history_rows(self.model.history.history, steps_per_epoch=1)
        if not before or merit(logs) > max(map(merit, before)):
            save_model(self._saved_model, self._path)


def verbosity(verbose):
    """Return 0, 1 or 2 of `model.fit` for the argument of `train`, which may be `"auto"`.

    Keras treats `"auto"` as 1 even when the output is a file, which then gets a progress bar for every step.
    """
    checks.check_choice("verbose", verbose, ("auto", 0, 1, 2))
    if verbose != "auto":
        return int(verbose)
    return 1 if keras.config.is_interactive_logging_enabled() and _can_redraw(sys.stdout) else 2


def shortest(value):
    """Return the shortest float that equals this number in float32: 0.98 instead of Keras's 0.9800000190734863.

    A number that is not a float32, such as a speed, is returned unchanged.
    """
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)


def merit(logs):
    """Return a value that is higher for the better of two epochs, None without a validation.

    Epochs are compared by validation accuracy, then by validation loss.
    """
    return (logs.get("val_accuracy", 0.0), -logs["val_loss"]) if "val_loss" in logs else None


def history_rows(history, steps_per_epoch):
    """Return one dict per epoch: `epoch` and `step`, counted from 1, learning rate, speed, then the metrics."""
    first = [name for name in ("learning_rate", "images_per_second") if name in history]
    names = first + [name for name in history if name not in first]
    length = max(map(len, history.values()), default=0)
    return [
        {"epoch": i + 1, "step": (i + 1) * steps_per_epoch, **{name: history[name][i] for name in names}}
        for i in range(length)
    ]


def _can_redraw(stream):
    """Whether the stream can overwrite a line, as terminals and notebooks can."""
    is_notebook = type(stream).__module__.partition(".")[0] == "ipykernel"
    return is_notebook or "PYCHARM_HOSTED" in os.environ or bool(getattr(stream, "isatty", bool)())


def _duration(seconds):
    """Return `"12 minutes"` or `"3.5 hours"`."""
    name, length = next((name, length) for name, length, most in _UNITS if seconds < most * length)
    return f"{seconds / length:.{0 if name == 'minutes' else 1}f} {name}"


def _rows_until(path, step):
    """Return (columns, lines: header and the rows up to `step`); (None, []) without a complete header.

    A last line without a line end was being written when the process was interrupted.
    """
    if step == 0 or not path.exists():
        return None, []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if not whole:
        return None, []
    columns, kept = whole[0].strip().split(","), [whole[0]]
    for number, line in enumerate(whole, 1):
        first, *others = line.strip().split(",")
        is_row = first == "step" if number == 1 else first.isdecimal() and len(others) == len(columns) - 1
        if not is_row:
            raise ValueError(
                f"{path} must be the table of steps that this run wrote; line {number} is {line[:60]!r}: "
                "delete or move the file, and the same command resumes with a new one"
            )
        if number > 1 and int(first) <= step:
            kept.append(line)
    return columns, kept


def _csv_text(columns, rows, header=True):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: shortest(value) if isinstance(value, float) else value for name, value in row.items()})
    return text.getvalue()
