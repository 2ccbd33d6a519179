"""The names of published models in timm and on the Hugging Face hub: variants of this package, and task models."""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Any

from keras_vit import checks
from keras_vit.files import read_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignName:
    """A row of foreign_names.tsv.

    Attributes:
        name: name of a model of timm with its tag, or repository on the hub.
        variant: name of our variant.
        weights: value of `weights` for the same weights.
        arguments: dict of further arguments of `create_model`.
        image_size: side of its images in pixels.
    """

    name: str
    variant: str
    weights: str
    image_size: int
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)


@functools.cache
def _rows():
    rows = read_table("checkpoints/foreign_names.tsv", ("arguments", "image_size"))
    return {row["name"]: ForeignName(**row) for row in rows}


def foreign_names() -> tuple[ForeignName, ...]:
    """Return all rows of the table."""
    return tuple(_rows().values())


@functools.cache
def task_models() -> dict[str, dict[str, Any]]:
    """Return the rows of task_models.tsv by the name of the repository.

    The first lines of the file describe its columns; `open` is the call that opens the model.
    """
    rows = read_table("checkpoints/task_models.tsv", ("config", "arguments", "parameters"))
    return {row["model"]: {**row, "open": f"keras_vit.load('hf://{row['model']}')"} for row in rows}


def find_foreign(name: Any) -> ForeignName | None:
    """Return the row for a name; None if there is none or it is no string.

    Args:
        name: name of a model of timm, with or without its tag (the first in the table, timm's own choice) and
            `hf-hub:` or `timm/`, or of a repository on the hub, with or without `hf://`.
    """
    if not isinstance(name, str):
        return None
    rows, name = _rows(), _without_prefix(name)
    if name in rows:
        return rows[name]
    return next((row for row in rows.values() if "/" not in row.name and row.name.partition(".")[0] == name), None)


def near_names(name: Any, ours: Iterable[str] = ()) -> str:
    """Return a suggestion such as ` (did you mean 'ViT-B_16'?)` of up to three names, `""` if none is close.

    Args:
        name: the name received; for a name of the tables there is no suggestion.
        ours: other names that could be meant; those of the tables always can, also without their tags.
    """
    name = _without_prefix(name) if isinstance(name, str) else name
    names = [*ours, *(row.name.partition(".")[0] for row in foreign_names()), *_rows(), *task_models()]
    if name in names:
        return ""
    return checks.suggestion(name, names[::-1], most=3, cutoff=0.65, spelling=_spelling)


def _spelling(name):
    """Return a name as it is compared with others: `"ViT-B_16"` and `"ViT_B16"` are equal."""
    return re.sub("[-_+ ]", "", name.lower())


def _without_prefix(name):
    for prefix in ("hf-hub:", "hf_hub:", "hf://"):
        name = name.removeprefix(prefix)
    return name.removeprefix("timm/")
