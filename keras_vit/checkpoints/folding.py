"""The arrays of a file under the names that the rules of its layout use; reading one checks it."""

import functools
import re
import threading
import warnings

import numpy as np

from keras_vit.checkpoints import names
from keras_vit.checkpoints.entries import Entry

_MOST_BLOCKS = 1000


def fold_entries(checkpoint, layout):
    """Return {folded name: Entry} for a `names.Layout`, None for Keras; `Entry.name` is the name in the file.

    Folding unifies dialects (see `names.LAYOUTS`), turns vectors stored as (1, 1, 1, channels) into vectors, splits
    arrays that stack all blocks into one per block, and drops buffers and optimizer state. Reading an array with NaN or
    infinite values raises a warning with its name.

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
    """Return whether an array of a Keras file is the grid or window that a position table belongs to."""
    return name.endswith(("/grid", "/window_size"))


def _is_ignored(layout, name):
    if layout is None:
        return is_size(name) or "seed_generator" in name  # dropout state
    return layout.ignored is not None and re.search(layout.ignored, name) is not None


def _shape(layout, name, entry):
    is_squeezed = layout is not None and layout.squeezed is not None and re.search(layout.squeezed, name)
    return entry.shape[3:] if is_squeezed and entry.shape[:3] == (1, 1, 1) else entry.shape


def _unstack(name, entry):
    """Split an array of big_vision's scanned blocks, which holds all layers along its first axis."""
    if len(entry.shape) < 2 or 0 in entry.shape or entry.shape[0] > _MOST_BLOCKS:
        raise ValueError(
            f"array {entry.name!r} must stack all blocks, at most {_MOST_BLOCKS}, along its first axis; "
            f"got shape {entry.shape}"
        )
    lock, stack = threading.Lock(), []

    def read(index):
        with lock:  # read_ahead.py reads in several threads
            if not stack:
                stack.append(entry.read())
        return stack[0][index]

    for index in range(entry.shape[0]):
        block = Entry(entry.name, entry.shape[1:], entry.dtype, functools.partial(read, index))
        yield names.of_block(name, index), block


def _read_checked(entry, shape, path):
    array = entry.read().reshape(shape)
    # The sum is finite unless a value is not, or it overflows; only then is the exact test needed.
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and not np.isfinite(array.sum()) and not np.isfinite(array).all():
            warnings.warn(f"array {entry.name!r} of {path} holds NaN or infinite values", stacklevel=2)
    return array
