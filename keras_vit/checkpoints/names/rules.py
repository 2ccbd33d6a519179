"""Rule and Layout: how the arrays of a family of files become the variables of a model, and the forms they lie in."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rule:
    """One variable of ours and the arrays it is made of.

    Attributes:
        ours: path of the variable. `{block}`, `{stage}` and `{unit}` stand for the numbers of `block_00`, `stage_1` and
            `unit_01`; `LAYER@VARIANT` is the layer of models of that variant, see `variants_of`.
        theirs: names in the file, one or several, with the same places; `{stage0}` and `{unit0}` count from 0.
        form: how each piece of ours lies in the file, a key of `FORMS`.
        axis: along which several pieces are joined.
    """

    ours: str
    theirs: tuple
    form: str = "same"
    axis: int = -1


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one family of files names its arrays.

    Attributes:
        rules: see `Rule`.
        marker: regular expression; a folded name that matches shows that a file is of this layout.
        foreign: regular expression; a name that matches shows that it is not, in spite of the marker; None for none.
        aliases: pairs (regular expression, replacement), applied in order to every name.
        ignored: regular expression of arrays that are no weights: buffers and optimizer state; None for none.
        squeezed: regular expression of vectors that may be stored as (1, 1, 1, channels); None for none.
        position_tables: dict from the folded name of a position table to how many prefix rows it may have, as names
            of token counts, tried in order.
        gelu, epsilon: what the family was trained with; None where it has no choice or a fixed one.
        resize: how the family resizes tables of positions.
        stem_style: the `style` of the `ResNetConfig` of its hybrids.
        shows: dict from the fields of `config.unseen` that need no statement to a regular expression: a folded name
            that matches shows the field ("": the layout has one value, or its shapes show it).
    """

    rules: tuple
    marker: str
    foreign: str | None = None
    aliases: tuple = ()
    ignored: str | None = None
    squeezed: str | None = None
    position_tables: dict = dataclasses.field(default_factory=dict)
    gelu: str | None = None
    epsilon: float | None = None
    resize: str = "align_corners"
    stem_style: str | None = None
    shows: dict = dataclasses.field(default_factory=dict)


def expand(form_of, rows):
    """Expands `(ours, theirs, kind)` rows, where a kind of layer has several arrays, to one rule per array."""
    rules = []
    for ours, theirs, kind in rows:
        theirs = (theirs,) if isinstance(theirs, str) else theirs
        for mine, other, form in form_of[kind]:
            axis = 1 if kind == "tokens" else -1
            rules.append(Rule(f"{ours}{mine}", tuple(f"{name}{other}" for name in theirs), form, axis))
    return tuple(rules)


# kind of layer -> its arrays: what to append to our path, what to theirs, form
FLAX = {
    "array": [("", "", "same")],
    "kernel": [("/kernel", "/kernel", "same")],
    "dense": [("/kernel", "/kernel", "same"), ("/bias", "/bias", "same")],
    "heads_out": [("/kernel", "/kernel", "heads_last"), ("/bias", "/bias", "heads_last")],
    "heads_in": [("/kernel", "/kernel", "heads_first"), ("/bias", "/bias", "same")],
    "pointwise": [("/kernel", "/kernel", "pointwise"), ("/bias", "/bias", "same")],
    "norm": [("/gamma", "/scale", "same"), ("/beta", "/bias", "same")],
    "keras_norm": [("/gamma", "/gamma", "same"), ("/beta", "/beta", "same")],
}
TORCH = {
    "array": [("", "", "same")],
    "tokens": [("", "", "same")],
    "gamma": [("/gamma", "", "same")],
    "conv": [("/kernel", ".weight", "convolution"), ("/bias", ".bias", "same")],
    "conv_kernel": [("/kernel", ".weight", "convolution")],
    "dense": [("/kernel", ".weight", "transposed"), ("/bias", ".bias", "same")],
    "dense_kernel": [("/kernel", ".weight", "transposed")],
    "norm": [("/gamma", ".weight", "same"), ("/beta", ".bias", "same")],
}

FORMS = {
    "same": lambda array, heads: array,
    "heads_last": lambda array, heads: array.reshape(*array.shape[:-1], heads, -1),  # (dim, heads, head_dim)
    "heads_first": lambda array, heads: array.reshape(heads, -1, array.shape[-1]),  # (heads, head_dim, dim)
    "pointwise": lambda array, heads: array.reshape(1, 1, *array.shape),  # a dense layer as a 1 x 1 convolution
    "transposed": lambda array, heads: array.transpose(1, 0),  # (out, in)
    "convolution": lambda array, heads: array.transpose(3, 2, 0, 1),  # (out, in, height, width)
}
_INVERSE = {"transposed": (1, 0), "convolution": (2, 3, 1, 0)}


def to_theirs(array, form, num_heads):
    """Lays one piece of a variable of ours out as the file has it."""
    return FORMS[form](array, num_heads)


def to_ours(array, form, shape):
    """Lays an array of a file out as the piece of ours, which has this shape."""
    return array.transpose(_INVERSE[form]) if form in _INVERSE else array.reshape(shape)


def theirs_shape(shape, form, num_heads):
    """The shape in the file of a piece of ours that has this shape."""
    return to_theirs(np.broadcast_to(0.0, shape), form, num_heads).shape
