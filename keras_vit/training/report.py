"""Reports of a run: rows of its history, the merit of an epoch, tables as CSV and text, and the curves as a PNG."""

import csv
import io

import numpy as np

from keras_vit.training.checkpoint_files import write_atomically

_METRICS = ("loss", "accuracy", "mean_absolute_error")
_PANELS = (*_METRICS, "learning_rate")


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
    names = [*first, *(name for name in history if name not in first)]
    epochs = zip(*(history[name] for name in names), strict=True)
    return [
        {"epoch": epoch, "step": epoch * steps_per_epoch, **dict(zip(names, values, strict=True))}
        for epoch, values in enumerate(epochs, 1)
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
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def draw_curves(rows, path):
    """Draw loss, accuracy or mean absolute error, and learning rate over the steps as a PNG.

    Args:
        rows: one dict per epoch, as returned by `history_rows`.
        path: of the file; it is replaced atomically.

    Returns:
        Whether matplotlib, which is optional, is installed; without it, no file is written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    panels = [name for name in _PANELS if name in rows[0]]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in (panel, f"val_{panel}"):
            if name in rows[0]:
                axes.plot([row["step"] for row in rows], [row[name] for row in rows], marker=".", label=name)
        axes.set(title=panel.replace("_", " "), xlabel="step")
        axes.legend()
    write_atomically(path, lambda partial: figure.savefig(partial, dpi=120))
    return True
