"""Reports of a run: values in the progress bar, tables of steps and epochs, the best model, and the final summary."""

import csv
import io
import os
import sys
import time
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import checks
from keras_vit.compat.saved_objects import learning_rate_at
from keras_vit.files import aligned
from keras_vit.logs import LOGGER
from keras_vit.training.checkpoint_files import disk_errors, write_atomically, write_text
from keras_vit.training.workers import save_model

_WAIT = 30  # seconds of training before the speed is stable enough for an estimate
_DIGITS = 9  # of a step at most, as in the names of checkpoints
_WORTH_TELLING = 90  # seconds; shorter estimates are not logged

_METRICS = ("loss", "accuracy", "mean_absolute_error", "rankme")


class Progress(keras.callbacks.Callback):
    """Add `learning_rate` and `images_per_second` to the logs; log once how long the remaining steps will take.

    It must come before the callbacks that show these values. The speed is the mean over the epoch without its first
    call, which includes the compilation in the first epoch. It is 0 for an epoch that an earlier run has completed and
    that is only validated again. The learning rate is that of the last step.

    Args:
        batch_size: images per step.
        steps_per_epoch: steps of an epoch.
        epochs: epochs of the whole run; None logs no remaining time.
        validates: whether every epoch ends with a validation, whose duration is not part of the remaining time.
        steps_done: steps of the run that earlier runs have completed; the last one may be reported again.
    """

    def __init__(self, batch_size, steps_per_epoch, epochs=None, validates=False, steps_done=0):
        super().__init__()
        self._steps_done = steps_done
        self._batch_size, self._steps_per_epoch, self._epochs = batch_size, steps_per_epoch, epochs
        self._besides = ", not counting validation" if validates else ""
        self._compiled = None  # when the first call of the run ended

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._first, self._values = epoch, None, {}
        self._rate = learning_rate_at(self.model.optimizer)
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now, done = time.perf_counter(), batch + 1
        step = self._epoch * self._steps_per_epoch + batch
        first, since = self._first or (done - self.model.steps_per_execution, self._begin)
        speed = (done - first) * self._batch_size / (now - since) if step >= self._steps_done else 0.0
        self._values = {"learning_rate": self._rate(step), "images_per_second": speed}
        self._first = self._first or (done, now)
        logs.update(self._values)
        self._compiled = self._compiled or now
        if self._epochs is not None and speed and now - self._compiled >= _WAIT:
            self._log_time_left((self._epochs - self._epoch) * self._steps_per_epoch - done)
            self._epochs = None

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self._values)

    def _log_time_left(self, steps):
        speed = self._values["images_per_second"]
        seconds = steps * self._batch_size / speed
        if seconds < _WORTH_TELLING:
            return
        if self.params["verbose"] == 1:  # end the line of Keras's progress bar
            sys.stdout.write("\n")
            sys.stdout.flush()
        pace = f"{speed:,.{0 if speed >= 10 else 1}f} images per second"
        LOGGER.info(f"about {_duration(seconds)} left at {pace}{self._besides}")


class Tables(keras.callbacks.Callback):
    """Write `steps.csv`, one row per step or per call of several steps, and `history.csv`, one row per epoch.

    Keras's loss and accuracy of a step are means over the epoch so far. A resumed run repeats the steps since its
    checkpoint; the old rows of these steps are removed first, so that every step appears once.

    Args:
        workdir: folder of the files.
        resume: the `Resume` of the same fit, which must come after this one among the callbacks.
        steps_per_epoch: steps of an epoch.
    """

    def __init__(self, workdir, resume, steps_per_epoch):
        super().__init__()
        self._steps, self._history = workdir / "steps.csv", workdir / "history.csv"
        self._resume, self._steps_per_epoch = resume, steps_per_epoch

    def on_train_begin(self, logs=None):
        self._step = self._resume.step
        lines = _lines_until(self._steps, self._step)
        self._columns = lines[0].strip().split(",") if lines else None
        if lines:
            write_text(self._steps, "".join(lines))

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
        text = csv_text(self._columns, [row], header=new)
        with disk_errors(self._steps), open(self._steps, "w" if new else "a", encoding="utf-8") as file:
            file.write(text)

    def on_epoch_end(self, epoch, logs=None):
        history = {name: [*self.model.history.history.get(name, ()), value] for name, value in logs.items()}
        rows = history_rows(history, self._steps_per_epoch)
        write_text(self._history, csv_text(list(rows[0]), rows))


class BestModel(keras.callbacks.Callback):
    """Save the model after every epoch whose `merit` is higher than that of all earlier epochs.

    Args:
        path: path of the `.keras` file.
        model: the model to save: the trained one, or the one inside it.
    """

    _before: Sequence[dict[str, float]] = ()  # logs of what precedes the first epoch

    def __init__(self, path, model):
        super().__init__()
        self._path, self._saved_model = path, model

    def on_epoch_end(self, epoch, logs=None):
        before = [*self._before, *history_rows(self.model.history.history, steps_per_epoch=1)]
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


def _can_redraw(stream):
    """Whether the stream can overwrite a line, as terminals and notebooks can."""
    is_notebook = type(stream).__module__.partition(".")[0] == "ipykernel"
    return is_notebook or "PYCHARM_HOSTED" in os.environ or bool(getattr(stream, "isatty", bool)())


def _duration(seconds):
    """Return `"12 minutes"` below 100 minutes, `"3.5 hours"` below 48 hours, then days."""
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 100:
        return f"{minutes:.0f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def _lines_until(path, step):
    """Return the header and the rows up to `step`; an empty list without a complete header.

    A last line without a line end is dropped, because the process was interrupted while writing it.
    """
    if step == 0 or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    for number, line in enumerate(whole, 1):
        first = line.strip().partition(",")[0]
        is_row = first.isdecimal() and len(first) <= _DIGITS if number > 1 else first == "step"
        if not is_row or line.count(",") != whole[0].count(","):
            raise ValueError(
                f"{path} must be the table of steps that this run wrote; line {number} is {line[:60]!r}: "
                "delete or move the file, and the same command resumes with a new one"
            )
    return whole[:1] + [line for line in whole[1:] if int(line.partition(",")[0]) <= step]


def shortest(value):
    """Return the shortest float that equals this number in float32: 0.98 instead of Keras's 0.9800000190734863.

    A number that is not a float32, such as a speed, is returned unchanged.
    """
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else float(value)


def merit(logs):
    """Return a value that is higher for the better of two epochs, None without a validation.

    Epochs are compared by validation accuracy, then by validation loss or, after self-distillation, by `rankme`, which
    counts as 0 if the teacher has collapsed.
    """
    if "val_loss" not in logs and "rankme" not in logs:
        return None
    other = -logs["val_loss"] if "val_loss" in logs else logs["rankme"] * (1 - logs.get("collapsed", 0))
    return logs.get("val_accuracy", 0.0), other


def history_rows(history, steps_per_epoch):
    """Return one dict per epoch: `epoch` and `step`, counted from 1, learning rate, speed, then the metrics."""
    first = [name for name in ("learning_rate", "images_per_second") if name in history]
    names = [*first, *(name for name in history if name not in first)]
    return [
        {"epoch": epoch, "step": epoch * steps_per_epoch, **dict(zip(names, values, strict=True))}
        for epoch, values in enumerate(zip(*(history[name] for name in names), strict=True), 1)
    ]


def csv_text(columns, rows, header=True):
    """Return the rows, dicts from column to value, as CSV text; floats have the digits of float32."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: shortest(value) if isinstance(value, float) else value for name, value in row.items()})
    return text.getvalue()


def summary(rows):
    """Return a table of the last epoch, and of the best one if there was a validation."""
    named = {"last": rows[-1]}
    if merit(rows[-1]) is not None:
        named = {"best": max(rows, key=merit), **named}
    columns = [name for name in ("epoch", "step", *_METRICS, *map("val_{}".format, _METRICS)) if name in rows[-1]]
    lines = [["", *columns]]
    for name, row in named.items():
        lines.append([name, *(f"{row[c]}" if isinstance(row[c], int) else f"{row[c]:.4f}" for c in columns)])
    return aligned(lines)


def draw_curves(rows, path):
    """Draw loss, accuracy or mean absolute error, and learning rate over the steps as a PNG.

    Args:
        rows: one dict per epoch, as returned by `history_rows`.
        path: path of the file; it is replaced atomically.

    Returns:
        Whether matplotlib, which is optional, is installed; without it, no file is written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    panels = [name for name in (*_METRICS, "learning_rate") if name in rows[0] or f"val_{name}" in rows[0]]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in (panel, f"val_{panel}"):
            if name in rows[0]:
                axes.plot([row["step"] for row in rows], [row[name] for row in rows], marker=".", label=name)
        axes.set(title=panel.replace("_", " "), xlabel="step")
        axes.legend()
    write_atomically(path, lambda partial: figure.savefig(partial, dpi=120))
    return True
