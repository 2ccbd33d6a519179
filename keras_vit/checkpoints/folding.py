"""The arrays of a file under the names that the rules of its layout use, each checked when it is read."""

import functools
import re
import threading
import warnings

import numpy as np

from keras_vit.checkpoints import names
from keras_vit.checkpoints.entries import Entry

_MOST_BLOCKS = 1000


def fold_entries(checkpoint, layout):
    """Returns {folded name: Entry} for a `names.Layout`, None for files of Keras; `Entry.name` stays the file's.

    Dialects become one (see `names.LAYOUTS`), vectors stored as (1, 1, 1, channels) become vectors, arrays that stack
    all blocks become one per block, buffers and optimizer state are left out. Reading an array with NaN or infinite
    values warns and names it.

    Raises:
        ValueError: if two arrays fold to one name.
    """
    folded = {}
    for entry in checkpoint.entries.values():
        name = entry.name if layout is None else names.fold(layout, entry.name)
        if _is_ignored(layout, name):
            continue
        shape = _shape(layout, name, entry)
        checked = Entry(entry.name, shape, entry.dtype, functools.partial(_read_checked, entry, shape, checkpoint.path))
        for key, value in _unstack(name, checked) if names.is_scanned(name) else [(name, checked)]:
            if key in folded:
                raise ValueError(
                    f"{str(checkpoint.path)!r}: arrays {folded[key].name!r} and {entry.name!r} both stand for {key!r}"
                )
            folded[key] = value
    return folded


def is_size(name):
    """Whether an array of a file of Keras says what size its neighbour, a table of positions, belongs to."""
    return name.endswith(("/grid", "/window_size"))


def _is_ignored(layout, name):
    if layout is None:
        return is_size(name) or "seed_generator" in name  # the state of dropout
    return layout.ignored is not None and re.search(layout.ignored, name) is not None


def _shape(layout, name, entry):
    is_squeezed = layout is not None and layout.squeezed is not None and re.search(layout.squeezed, name)
    return entry.shape[3:] if is_squeezed and entry.shape[:3] == (1, 1, 1) else entry.shape


def _unstack(name, entry):
    """big_vision scans its blocks: one array holds those of all layers along its first axis."""
    if len(entry.shape) < 2 or 0 in entry.shape or entry.shape[0] > _MOST_BLOCKS:
        raise ValueError(
            f"array {entry.name!r} must stack all blocks, at most {_MOST_BLOCKS}, along its first axis; "
            f"got shape {entry.shape}"
        )
    lock, stack = threading.Lock(), []

    def read(index):
        with lock:  # several threads may ask, see read_ahead.py
            if not stack:
                stack.append(entry.read())
        return stack[0][index]

    for index in range(entry.shape[0]):
        block = Entry(entry.name, entry.shape[1:], entry.dtype, functools.partial(read, index))
        yield names.of_block(name, index), block


def _read_checked(entry, shape, path):
    array = entry.read().reshape(shape)
    # The sum is finite unless something in it is not, or it overflows; the exact test is made only then.
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and not np.isfinite(array.sum()) and not np.isfinite(array).all():
            warnings.warn(f"array {entry.name!r} of {path} holds NaN or infinite values", stacklevel=2)
    return array
