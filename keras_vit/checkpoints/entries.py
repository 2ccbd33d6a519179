"""Checkpoint: what an opened file of weights holds, as named arrays that are read when they are asked for."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file: name, shape and dtype there, and `read()`, which returns it (float32 if it is floating).

    `check()` raises what `read()` raises on damage; None where only reading tells.
    """

    name: str
    shape: tuple
    dtype: str
    read: Callable[[], np.ndarray]
    check: Callable[[], None] | None = None

    @property
    def is_floating(self):
        """Whether it holds floating-point numbers; `np.save` stores bfloat16 as `V2`."""
        return re.match(r"b?float|B?F\d|void16$", self.dtype) is not None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a file of weights holds.

    Attributes:
        path: where it lies.
        kind: `npz`, `safetensors` or `h5`.
        entries: dict from array name to `Entry`.
        metadata: dict of strings that the file carries beside its arrays.
        config: the `config.json` beside or inside it, a dict, or None.
        preprocessor: the `preprocessor_config.json` beside it, a dict, or None.
    """

    path: pathlib.Path
    kind: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    config: Mapping | None = None
    preprocessor: Mapping | None = None


def from_float8(codes, dtype):
    """Returns the values of float8 numbers as float32.

    Args:
        codes: array of bytes, one per number.
        dtype: `F8_E4M3` (finite, as `ml_dtypes.float8_e4m3fn`) or `F8_E5M2`, arXiv 2209.05433.
    """
    codes = codes.astype("<u2")
    if dtype == "F8_E5M2":
        return (codes << 8).view("<f2").astype("float32")  # the upper half of a float16
    values = ((codes & 0x80) << 8 | (codes & 0x7F) << 7).view("<f2").astype("float32") * 2**8  # biases 15 and 7
    return np.where(codes & 0x7F == 0x7F, np.float32(np.nan), values)


def as_float32(array, name):
    """Returns bfloat16, also where np.save stored it as 2-byte void, and the other floating types as float32.

    Raises:
        ValueError: if the array holds no numbers.
    """
    if array.dtype == np.dtype("V2"):
        return (array.view("<u2").astype("<u4") << 16).view("<f4")
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        with np.errstate(over="ignore"):  # folding.py warns of the infinity that comes of it
            return array.astype("float32", copy=False)
    if array.dtype.kind not in "iub":
        raise ValueError(f"array {name!r} must hold numbers; got dtype {array.dtype}")
    return array
