"""The mapping between our variable paths and the array names of other libraries, for every network.

Each network has a table, and `layouts.toml` states what else its files have in common; `rules.py` reads both. Loading
and saving use the same tables.
"""

import dataclasses
import functools
import math
import re
import threading
import warnings

import numpy as np

from keras_vit.checkpoints.entries import Entry
from keras_vit.checkpoints.names.rules import LAYOUTS, Layout, fits
from keras_vit.files import read_toml

# files from Keras; sizes of tables, and dropout state, are not weights
_KERAS = Layout("keras", (), marker="", ignored=r"/grid$|/window_size$|seed_generator")
_MOST_BLOCKS = 1000
_NO_WEIGHT = "a buffer or the state of an optimizer"
_CASES = read_toml("checkpoints/names/cases.toml")
_SPELLINGS = ("split_gate", "gamma")  # cases that only change names
_SCANNED = re.compile(r"^Transformer/encoderblock/")
_NUMBERED = re.compile(
    r"(block|stage|unit|attention_bias|level|fusion|upscale|dense|expert|mask_head|detection_positions)_(\d+)"
)


def fold(layout, name):
    """Convert an array's name, in any dialect of a `Layout`, to the name that the layout's rules use."""
    for pattern, replacement in layout.aliases:
        name = re.sub(pattern, replacement, name)
    return name


def detect(entries, network, library="auto"):
    """Return the `Layout` of this network that matches these array names, or None.

    Args:
        entries: dict from the name of each array of a file to its `Entry`.
        network: `network` of a config.
        library: library of the layout, see `Layout`; `auto` for any.
    """
    layouts = LAYOUTS.get(network, {}).values()
    for layout in sorted(layouts, key=lambda layout: (layout.needs is None, layout.rank is None)):
        if library not in ("auto", layout.library) or (layout.needs is not None and layout.needs not in entries):
            continue
        is_excluded = layout.excludes is not None and any(re.search(layout.excludes, name) for name in entries)
        marks = [entry for name, entry in entries.items() if re.search(layout.marker, fold(layout, name))]
        if not is_excluded and any(layout.rank in (None, len(entry.shape)) for entry in marks):
            return layout
    return None


def fold_entries(path, entries, layout):
    """Return {folded name: Entry}, and {name in the file: reason} of the arrays that are not weights of the model.

    `Entry.name` is the name in the file. `layout` is a `Layout`, None for Keras.

    Folding unifies dialects (`Layout.aliases`), turns vectors stored as (1, 1, 1, channels) into vectors and tables of
    other ranks (`Layout.ranks`) into tables of rank 3, splits arrays that stack all blocks into one per block, cuts
    arrays that join several of ours (`Layout.cuts`), whose names it folds, too, and drops buffers, optimizer state,
    what the layout sets aside and tables without rows.
    Reading an array with NaN or infinite values raises a warning with its name.

    Raises:
        ValueError: if two arrays fold to one name.
    """
    found, unread, layout = {}, {}, layout or _KERAS
    patterns = {_NO_WEIGHT: layout.ignored, **layout.aside}
    for entry in entries.values():
        name, shape = fold(layout, entry.name), entry.shape
        reasons = (reason for reason, pattern in patterns.items() if pattern is not None and re.search(pattern, name))
        if (reason := next(reasons, None)) is not None:
            unread[entry.name] = reason
            continue
        if len(shape) == 3 and shape[1] == 0:
            unread[entry.name] = "the registers of a model without registers"
            continue
        if (rank := layout.rank_of(name)) is not None:
            shape = (1,) * (3 - len(shape)) + shape if rank < 3 else (1, math.prod(shape[:-1]), *shape[-1:])
        if layout.squeezed is not None and re.search(layout.squeezed, name) and shape[:3] == (1, 1, 1):
            shape = shape[3:]
        checked = Entry(entry.name, shape, entry.dtype, functools.partial(_read_checked, entry, shape, path))
        for key, value in _pieces(name, checked, entries, layout):
            if key in found:
                raise ValueError(f"{str(path)!r}: arrays {found[key].name!r} and {entry.name!r} both stand for {key!r}")
            found[key] = value
    return found, unread


def _pieces(name, entry, entries, layout):
    """Yield the (name, Entry) pairs that an array stands for."""
    if _SCANNED.search(name):
        yield from _unstack(name, entry)
        return
    cut = next((cut for pattern, cut in layout.cuts.items() if re.search(pattern, name)), None)
    if cut is None or not entry.shape:
        yield name, entry
        return
    length, stem, sign = entry.shape[0], entry.name.rpartition(".")[0], "#"
    if cut == "attention, mlp":
        sign, ends = "%", [length, entry.shape[-1]]
    elif cut == "each":
        ends = [index + 1 for index in range(length)]
    elif isinstance(cut, str):  # "mlp, query, key, value"
        width = entries[f"{stem}.weight"].shape[-1] if f"{stem}.weight" in entries else 0
        ends = [length - 3 * width, length - 2 * width, length - width, length]
    else:
        if length % cut:
            raise ValueError(f"array {entry.name!r} must have {cut} equal parts; got shape {entry.shape}")
        ends = [length // cut * (index + 1) for index in range(cut)]
    mask = entries.get(f"{entry.name}_mask")
    for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        part = np.s_[:, start:end] if sign == "%" else start if cut == "each" else np.s_[start:end]

        def read(part=part):
            array = entry.read()[part]
            return array if mask is None else array * mask.read()[part]

        piece, shape = f"{name}{sign}{index}", np.broadcast_to(0.0, entry.shape)[part].shape
        if layout.ignored is None or not re.search(layout.ignored, piece):
            yield fold(layout, piece), Entry(entry.name, shape, entry.dtype, read)


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


def find_rule(layout, path, config, names=None):
    """Return the rule of a model's variable with its numbers filled in, or None if the `Layout` has none.

    Args:
        layout: a `Layout`.
        path: path of the variable.
        config: config of its model.
        names: folded names of a file: of the names that the layout knows for the variable, those that the file has are
            preferred. None prefers those that the library writes for such a model.
    """
    numbers = {match[1]: int(match[2]) for match in _NUMBERED.finditer(path)}
    numbers |= {f"{name}0": number - 1 for name, number in numbers.items()}
    template = _NUMBERED.sub(r"\1_{\1}", path)
    layer, slash, rest = template.partition("/")
    rules = {rule.ours: rule for rule in layout.rules}
    applying = _applying(config)
    # The names that the library writes for the config are first; a file may have those of another model's spelling.
    others = () if names is None else (name for name in _SPELLINGS if name not in applying)
    keys = {case: f"{layer}@{case}{slash}{rest}" if case else template for case in (*applying, None, *others)}
    if layer == "encoder_norm" and "after_pooling" in applying:  # fc_norm is another layer, not another name
        del keys[None]
    found = {case: rules[key] for case, key in keys.items() if key in rules}
    # The other cases are other arrays, not other spellings: no other name stands for these.
    strict = [rule for case, rule in found.items() if case is not None and case not in _SPELLINGS]
    candidates = [
        dataclasses.replace(rule, ours=path, theirs=tuple(name.format(**numbers) for name in rule.theirs))
        for rule in strict[:1] or found.values()
    ]
    if not candidates or names is None or any(name in names for name in candidates[0].theirs):
        return candidates[0] if candidates else None
    return next((rule for rule in candidates if all(name in names for name in rule.theirs)), candidates[0])


@functools.lru_cache(8)
def _applying(config):
    """Return the cases of cases.toml that a model of this config is."""
    return tuple(
        name
        for name, cases in _CASES.items()
        if any(all(fits(wanted, config.field(field)) for field, wanted in case.items()) for case in cases)
    )


def of_layer(layout, layer, folded):
    """Return the set of the folded names that belong to one top-level layer, in any case."""
    if layout is None:
        return {name for name in folded if name.partition("/")[0] == layer}
    rules = [rule for rule in layout.rules if rule.ours.partition("/")[0].partition("@")[0] == layer]
    return {name for rule in rules for name in rule.theirs} & set(folded)
