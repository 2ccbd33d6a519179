"""The mapping between our variable paths and the array names of other libraries, for every family.

Each family has a table, and `layouts.toml` states what else its files have in common; `rules.py` reads both. Loading
and saving use the same tables.
"""

import dataclasses
import functools
import re
import threading
import warnings

import numpy as np

from keras_vit.checkpoints.entries import Entry
from keras_vit.checkpoints.names.rules import LAYOUTS

_KERAS_ONLY = r"/grid$|/window_size$|seed_generator"  # sizes of tables, and dropout state
_MOST_BLOCKS = 1000
_SCANNED = re.compile(r"^Transformer/encoderblock/")
_NUMBERED = re.compile(r"(block|stage|unit)_(\d+)")


def fold(layout, name):
    """Convert an array's name, in any dialect of a `Layout`, to the name that the layout's rules use."""
    for pattern, replacement in layout.aliases:
        name = re.sub(pattern, replacement, name)
    return name


def detect(names, family):
    """Return the name of the layout of this family that matches these array names, or None."""
    for key, layout in LAYOUTS[family].items():
        is_foreign = layout.foreign is not None and any(re.search(layout.foreign, name) for name in names)
        if not is_foreign and any(re.search(layout.marker, fold(layout, name)) for name in names):
            return key
    return None


def fold_entries(path, entries, layout):
    """Return {folded name: Entry}; `Entry.name` is the name in the file. `layout` is a `Layout`, None for Keras.

    Folding unifies dialects (see `LAYOUTS`), turns vectors stored as (1, 1, 1, channels) into vectors, splits
    arrays that stack all blocks into one per block, and drops buffers and optimizer state. Reading an array with NaN or
    infinite values raises a warning with its name.

    Raises:
        ValueError: if two arrays fold to one name.
    """
    found = {}
    ignored = _KERAS_ONLY if layout is None else layout.ignored
    for entry in entries.values():
        name = entry.name if layout is None else fold(layout, entry.name)
        shape = entry.shape
        if ignored is not None and re.search(ignored, name):
            continue
        if layout is not None and layout.squeezed is not None and re.search(layout.squeezed, name):
            shape = shape[3:] if shape[:3] == (1, 1, 1) else shape
        checked = Entry(entry.name, shape, entry.dtype, functools.partial(_read_checked, entry, shape, path))
        for key, value in _unstack(name, checked) if _SCANNED.search(name) else [(name, checked)]:
            if key in found:
                raise ValueError(f"{str(path)!r}: arrays {found[key].name!r} and {entry.name!r} both stand for {key!r}")
            found[key] = value
    return found


def _unstack(name, entry):
    """Split an array of big_vision's scanned blocks, which holds all layers along its first axis."""
    if len(entry.shape) < 2 or 0 in entry.shape or entry.shape[0] > _MOST_BLOCKS:
        raise ValueError(
            f"array {entry.name!r} must stack all blocks, at most {_MOST_BLOCKS}, along its first axis; "
            f"got shape {entry.shape}"
        )
    lock, stack = threading.Lock(), []

    def read(index):
        with lock:  # load.py reads in several threads
            if not stack:
                stack.append(entry.read())
        return stack[0][index]

    for index in range(entry.shape[0]):
        block = Entry(entry.name, entry.shape[1:], entry.dtype, functools.partial(read, index))
        yield _SCANNED.sub(f"Transformer/encoderblock_{index}/", name), block


def _read_checked(entry, shape, path):
    array = entry.read().reshape(shape)
    # The exact test is needed only if the sum is not finite: a value is not finite, or the sum overflows.
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f" and not np.isfinite(array.sum()) and not np.isfinite(array).all():
            warnings.warn(f"array {entry.name!r} of {path} holds NaN or infinite values", stacklevel=2)
    return array


def find_rule(layout, path, config):
    """Return the rule of a model's variable with its numbers filled in, or None if the `Layout` has none."""
    numbers = {match[1]: int(match[2]) for match in _NUMBERED.finditer(path)}
    numbers |= {f"{name}0": number - 1 for name, number in numbers.items()}
    template = _NUMBERED.sub(r"\1_{\1}", path)
    layer, slash, rest = template.partition("/")
    variants = [name for name, applies in _VARIANTS.items() if applies(config)]
    spellings = [f"{layer}@{variant}{slash}{rest}" for variant in variants]
    if layer != "encoder_norm" or "after_pooling" not in variants:  # fc_norm is another layer, not another name
        spellings.append(template)
    rules = {rule.ours: rule for rule in layout.rules}
    rule = next((rules[spelling] for spelling in spellings if spelling in rules), None)
    if rule is None:
        return None
    return dataclasses.replace(rule, ours=path, theirs=tuple(name.format(**numbers) for name in rule.theirs))


def of_layer(layout, layer, folded):
    """Return the set of the folded names that belong to one top-level layer, in any variant."""
    if layout is None:
        return {name for name in folded if name.partition("/")[0] == layer}
    rules = [rule for rule in layout.rules if rule.ours.partition("/")[0].partition("@")[0] == layer]
    return {name for rule in rules for name in rule.theirs} & set(folded)


# variants of layers that have other names in files
_VARIANTS = {
    "after_pooling": lambda config: getattr(config, "norm_position", None) == "after_pooling",
    "distilled": lambda config: getattr(config, "distilled", False),
    "root_only": lambda config: getattr(getattr(config, "stem", None), "stage_sizes", None) == (),
}
