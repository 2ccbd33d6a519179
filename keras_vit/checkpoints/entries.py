"""Checkpoint: the contents of an open weights file, as named arrays that are read on demand."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.files import Refused

DEFLATE_LIMIT = 1032  # maximum compression ratio of zlib


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file: its name, shape and dtype there, and `read()`, which returns floating arrays as float32.

    The array may be a read-only view of a mapped file.

    For a damaged array, `check()` raises the same errors as `read()`, without keeping the array. It is None if only
    `read()` finds the damage.
    """

    name: str
    shape: tuple
    dtype: str
    read: Callable[[], np.ndarray]
    check: Callable[[], None] | None = None

    @property
    def is_floating(self):
        """Return whether it holds floating-point numbers; `np.save` stores bfloat16 as `V2`."""
        return re.match(r"b?float|B?F\d|void16$", self.dtype) is not None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The contents of a weights file.

    Attributes:
        path: path of the file.
        kind: `npz`, `safetensors` or `h5`.
        entries: dict from array name to `Entry`.
        metadata: dict of the strings in the file's metadata.
        config_json: the `config.json` next to or inside the file, a dict, or None.
        processor: the `preprocessor_config.json` next to the file, or a `processor_config.json` that has an
            `image_processor`, a dict, or None.
    """

    path: pathlib.Path
    kind: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    config_json: Mapping | None = None
    processor: Mapping | None = None


def as_float32(array, name):
    """Return a floating array as float32, and other numbers unchanged; 2-byte void is bfloat16 (`np.save`).

    Raises:
        Refused: if the array holds no numbers.
    """
    if array.dtype == np.dtype("V2"):
        wide = array.view("<u2").astype("<u4")
        wide <<= 16
        return wide.view("<f4")
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        with np.errstate(over="ignore"):  # names/__init__.py warns of the resulting infinity
            return array.astype("float32", copy=False)
    if array.dtype.kind not in "iub":
        raise Refused(f"array {name!r} must hold numbers; got dtype {array.dtype}")
    return array
