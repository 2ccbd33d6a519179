"""Rule and Layout: the mapping from the arrays of files to the variables of a model, and the storage forms."""

import dataclasses
import functools
import math
import re

import numpy as np

from keras_vit.files import read_table, read_toml


@dataclasses.dataclass(frozen=True)
class Rule:
    """One of our variables and the arrays of a file that form it.

    Attributes:
        ours: path of the variable. `{block}`, `{stage}` and `{unit}` stand for the numbers of `block_00`, `stage_1` and
            `unit_01`; `LAYER@CASE` is the layer in models of that case, a key of cases.toml.
        theirs: one or several names in the file, with the same placeholders; `{stage0}` and `{unit0}` count from 0.
        form: how the file stores each piece of the variable, a key of `FORMS`.
        axis: axis along which several pieces are joined.
    """

    ours: str
    theirs: tuple
    form: str = "same"
    axis: int = -1


@dataclasses.dataclass(frozen=True)
class Layout:
    """The array names of one family of files.

    Attributes:
        library: whose names they are, as users name it: `official` (Google's JAX code), `original` (the authors of
            another family), `timm`, `huggingface` or `microsoft`.
        rules: see `Rule`.
        marker: regular expression; a matching folded name shows that a file has this layout.
        rank: number of axes of the array that `marker` matches, None for any number.
        needs: name, not folded, of another array that a file of this layout has; None for none.
        of_task: whether its files are those of task models, which a config.json describes.
        excludes: regular expression; a matching name, not folded, shows that a file does not have this layout, even if
            `marker` matches; None for none.
        fields: dict from fields of the config, with dots for nested ones, to their values in these files.
        aliases: pairs (regular expression, replacement), applied in order to every name.
        ignored: regular expression of arrays that are not weights: buffers and optimizer state; None for none.
        aside: dict from a part of the file that is not read, such as `the text tower`, to a regular expression of its
            arrays; the report names it.
        cuts: dict from a regular expression of arrays to the number of equal pieces that they are cut into along their
            first axis; the pieces of `NAME` are `NAME#0` and so on. `mlp, query, key, value` stands for four pieces of
            which the last three are square, `attention, mlp` for `NAME%0`, which is square, and `NAME%1` along the
            second axis, and `each` for one piece per index, without the first axis.
        masked: regular expression of the biases of keys, which most of these files mask; if all are zero, the model has
            none (`block.key_bias` is False), unless the file states that it has.
        ranks: dict from a regular expression of position tables and class tokens to their rank in the file. Tables of
            rank 3 (rows, columns, dim) and 4 (1, rows, columns, dim) have axes for the rows and columns of the grid.
        suffix: end of the names of its files.
        prefix: start of every name in the files that `save_weights` writes.
        holds: dict from fields of the config, with dots for nested ones, to the value that `save_weights` needs, see
            `fits`. `save_weights` writes the layout of the model's family, or the first of the library that can hold
            the model.
        families: families of families.toml that files of this layout belong to, unless a config.json states others.
        squeezed: regular expression of vectors that may be stored as (1, 1, 1, channels); None for none.
        position_tables: dict from the folded name of a position table to the prefix rows that it may have: `class`,
            `class and registers` or `none`, tried in the order of the list.
        gelu, epsilon: values that these files were trained with; None if the architecture has no such field.
        resize: resize method of the family for position tables.
        stem_style: the `style` of the `ResNetConfig` of its hybrids.
        need_not_state: dict from a field of `config.unseen` to a regular expression. If a folded name matches, the file
            need not state the field. "" always matches: the layout has only one value, or shapes show it.
    """

    library: str
    rules: tuple
    marker: str
    rank: int | None = None
    needs: str | None = None
    of_task: bool = False
    excludes: str | None = None
    fields: dict = dataclasses.field(default_factory=dict)
    aliases: tuple = ()
    ignored: str | None = None
    aside: dict = dataclasses.field(default_factory=dict)
    cuts: dict = dataclasses.field(default_factory=dict)
    masked: str | None = None
    ranks: dict = dataclasses.field(default_factory=dict)
    suffix: str = ".safetensors"
    prefix: str = ""
    holds: dict = dataclasses.field(default_factory=dict)
    squeezed: str | None = None
    position_tables: dict = dataclasses.field(default_factory=dict)
    families: tuple = ()
    gelu: str | None = None
    epsilon: float | None = None
    resize: str = "align_corners"
    stem_style: str | None = None
    need_not_state: dict = dataclasses.field(default_factory=dict)

    def rank_of(self, name):
        """Return the rank that an array has in the file, by its folded name; None if it is that of ours."""
        return next((rank for pattern, rank in self.ranks.items() if re.search(pattern, name)), None)


def fits(wanted, value):
    """Return whether a field of a config has a value that a table wants.

    Args:
        wanted: the value; `set` stands for any but None, False and empty ones, `unset` for these, `any` for all values,
            and a list for several.
        value: value of the field.
    """
    if isinstance(wanted, list):
        return value in wanted
    return {"any": True, "set": bool(value), "unset": not value}.get(wanted, value == wanted)


def _layout(network, sections, name):
    """Return the `Layout` of a section of layouts.toml, one of the `sections` of a network."""
    section = _section(sections, name)
    fields = {field: value for field, value in section.items() if field not in ("base", "like", "table")}
    return Layout(**{"library": name, "rules": tuple(_rules_of(network, sections, name).values()), **fields})


def _section(sections, name):
    """Return a section of layouts.toml with the fields of the section that it is `like`, where it has none."""
    section = sections[name]
    return {**(_section(sections, section["like"]) if "like" in section else {}), **section}


def _rules_of(network, sections, name):
    """Return {our variable: `Rule`} of a layout; its own table has precedence over that of its `base`."""
    section = _section(sections, name)
    base = _rules_of(network, sections, section["base"]) if "base" in section else {}
    table, column = (section["table"], "theirs") if "table" in section else (network, name)
    files = "official" if section.get("suffix") == ".npz" else "torch"
    return base | {rule.ours: rule for rule in _read_rules(table, column, files)}


_read = functools.cache(lambda table: read_table(f"checkpoints/names/{table}.tsv"))


@functools.cache
def _read_rules(table, column, files):
    """Return the rules of a layout, one per array, from a column of a table; `files` selects rows of kinds.tsv.

    A line of the table is one of our layers, or a single variable: its name, its name in the files of each layout, and
    its kind. `(query|key)` stands for several arrays that are the pieces of one of ours.
    """
    rules = []
    kinds = [row for row in _read("kinds") if files in row["files"].split()]
    for row in _read(table):
        if column in row:
            start, _, choice = row[column].partition("(")
            parts, _, end = choice.partition(")")
            for array in (array for array in kinds if array["kind"] == row["kind"]):
                theirs = tuple(f"{start}{part}{end}{array.get('theirs', '')}" for part in parts.split("|"))
                ours = row["layer"] + array.get("ours", "")
                rules.append(Rule(ours, theirs, array["form"], axis=1 if row["kind"] == "tokens" else -1))
    return tuple(rules)


# `network` of a config -> name of a layout -> `Layout`
LAYOUTS = {
    network: {name: _layout(network, sections, name) for name in sections}
    for network, sections in read_toml("checkpoints/names/layouts.toml").items()
}
_TEXT = read_toml("checkpoints/names/text.toml")
TEXT_LAYOUTS = {name: _layout("text", _TEXT, name) for name in _TEXT}  # of text towers
LIBRARIES = tuple(dict.fromkeys(layout.library for layouts in LAYOUTS.values() for layout in layouts.values()))

FORMS = {
    "same": lambda array, heads: array,
    "heads_last": lambda array, heads: array.reshape(*array.shape[:-1], heads, -1),  # (dim, heads, head_dim)
    "heads_first": lambda array, heads: array.reshape(heads, -1, array.shape[-1]),  # (heads, head_dim, dim)
    "pointwise": lambda array, heads: array.reshape(1, 1, *array.shape),  # a dense layer as a 1 x 1 convolution
    "transposed": lambda array, heads: array.transpose(1, 0),  # (out, in)
    "convolution": lambda array, heads: array.transpose(3, 2, 0, 1),  # (out, in, height, width)
    "depthwise": lambda array, heads: array.transpose(2, 3, 0, 1),  # (channels, 1, height, width)
    "flat": lambda array, heads: array.reshape(-1, array.shape[-1]),  # (height * width * in, out)
    "patches": lambda array, heads: array.reshape(-1, array.shape[-1]).transpose(1, 0),  # (out, height * width * in)
}
_INVERSE = {"transposed": (1, 0), "convolution": (2, 3, 1, 0), "depthwise": (2, 3, 0, 1), "patches": (1, 0)}
_RGB = 3
_ROWS = 16


def to_theirs(array, form, num_heads):
    """Convert one piece of our variable to the form in the file."""
    return FORMS[form](array, num_heads)


def to_ours(array, form, shape):
    """Convert an array of a file to our piece of this shape."""
    return (array.transpose(_INVERSE[form]) if form in _INVERSE else array).reshape(shape)


def fill(target, array):
    """Copy an array of `to_ours` into one of the same shape, of any dtype."""
    with np.errstate(over="ignore"):  # as in `as_float32`
        if array.flags.c_contiguous:
            target[...] = array
            return
        # A few rows of the file stay in the processor's cache: a third of the time of one assignment. NumPy copies the
        # bits of bfloat16 faster than its values, and without Python's lock.
        bits = f"u{target.itemsize}"
        for start in range(0, array.shape[-1], _ROWS):
            part = np.s_[..., start : start + _ROWS]
            target.view(bits)[part] = array[part].astype(target.dtype, copy=False).view(bits)


def our_shape(shape, form):
    """Return the shape of our piece for an array of this shape in the file; flat patches are square ones of RGB."""
    if form in _INVERSE and len(shape) == len(_INVERSE[form]):
        shape = tuple(shape[axis] for axis in _INVERSE[form])
    if form in ("flat", "patches") and len(shape) == 2:
        side = math.isqrt(shape[0] // _RGB)
        return (side, side, _RGB, shape[1]) if shape[0] == _RGB * side**2 else tuple(shape)
    if form == "heads_last" and len(shape) >= 2:
        return (*shape[:-2], shape[-2] * shape[-1])
    if form == "heads_first" and len(shape) == 3:
        return (shape[0] * shape[1], shape[2])
    return tuple(shape[2:]) if form == "pointwise" else tuple(shape)


def theirs_shape(shape, form, num_heads):
    """Return the shape that a piece of this shape has in the file."""
    return to_theirs(np.broadcast_to(0.0, shape), form, num_heads).shape
