"""The accuracies that timm publishes, and the same files measured on one's own images: `keras-vit evaluate --all`."""

import csv
import fnmatch
import io
import pathlib
from typing import Any

import keras_vit
from keras_vit import checks, files
from keras_vit.cli.failures import USER_ERRORS

_PERCENT = ("top1", "top5", "real")
PUBLISHED = {row["name"]: row for row in files.read_table("cli/timm_results.tsv", ("size", *_PERCENT))}
COLUMNS = {  # of the table of `--all` -> heading in the text
    **{"file": "file", "images": "images", "top1": "top-1 %", "top5": "top-5 %"},
    **{"published_top1": "published top-1 %", "published_top5": "published top-5 %", "error": "error"},
}


def published(source: str) -> dict[str, Any] | None:
    """Return the row of timm's table for a model, None if it has none.

    Args:
        source: name of the table, or what `keras_vit.load` takes, whose config.json states the name.
    """
    return PUBLISHED.get(source) or PUBLISHED.get(keras_vit.describe(source).timm_file)


def address(source: str) -> str:
    """Return what `keras_vit.load` takes for a name of the table; other sources are returned as they are.

    Args:
        source: as in `published`.
    """
    return f"hf://timm/{source}" if source in PUBLISHED else source


def compared(row: dict[str, Any] | None, with_real: bool) -> str:
    """Return the published accuracies as a line.

    Args:
        row: row of `published`, or None.
        with_real: whether to state the accuracy on the ReaL labels instead of both on ImageNet's own.
    """
    if row is None:
        return "timm publishes no accuracy of this file"
    figures = {"real": "ReaL top-1 accuracy"} if with_real else {"top1": "top-1 accuracy", "top5": "top-5"}
    shown = ", ".join(f"{title} {row[key]:.2f} %" for key, title in figures.items() if key in row)
    return f"published by timm: {shown or 'nothing'} ({row['name']} at {row['size']} pixels, all 50,000 images)"


def evaluate_all(pattern: str, data: Any, table: str, batch_size: int | None = None) -> list[dict[str, Any]]:
    """Measure each file of timm's table whose name matches; return the rows of the table that is written.

    The table is written after each file. A later call measures only files that it does not have or that have an error.

    Args:
        pattern: name of the table, in which `*` and `?` stand for any characters.
        data: as in `keras_vit.evaluate`.
        table: path of the table, a .csv file.
        batch_size: images per batch; None is 32.

    Raises:
        ValueError: if no name matches, or the table has other columns.
    """
    names = fnmatch.filter(PUBLISHED, pattern.lower())
    if not names:
        hint = checks.suggestion(pattern, PUBLISHED, most=3, cutoff=0.4)
        raise ValueError(f"--all {pattern!r} matches none of the {len(PUBLISHED)} files with published results{hint}")
    rows = _read(pathlib.Path(table))
    for name in names:
        if name not in rows or rows[name]["error"]:
            rows[name] = _measured(name, data, batch_size)
            files.replace_file(table, lambda path: _write(path, rows))
    return [rows[name] for name in names]


def _measured(name, data, batch_size):
    row = {"file": name, "published_top1": PUBLISHED[name]["top1"], "published_top5": PUBLISHED[name]["top5"]}
    try:
        found = keras_vit.evaluate(keras_vit.load(address(name)), data, batch_size=batch_size)
    except USER_ERRORS as error:  # the next file may be better
        return dict.fromkeys(COLUMNS, "") | row | {"error": str(error)}
    shares = {f"top{k}": round(100 * share, 3) for k, share in found.top.items()}
    return dict.fromkeys(COLUMNS, "") | row | {"images": found.count, **shares}


def _read(path):
    if not path.exists():
        return {}
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    if reader.fieldnames != [*COLUMNS]:
        raise ValueError(f"--table {path} must have the columns {', '.join(COLUMNS)}; got {reader.fieldnames}")
    return {row["file"]: row for row in reader}


def _write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows.values())
