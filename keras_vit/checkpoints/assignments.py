"""The arrays of a file that each variable of a model gets its value from: the same, converted, joined or resized."""

import contextlib
import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.checkpoints import channels, names
from keras_vit.checkpoints.names.rules import Rule, fill, theirs_shape, to_ours
from keras_vit.checkpoints.position_table import PositionTable
from keras_vit.compat.initial_values import aligned_zeros
from keras_vit.config import ViTConfig
from keras_vit.config.base import RESIZE_METHODS
from keras_vit.layers.grid_attention import DecomposedPositions
from keras_vit.layers.position_bias import AttentionBias
from keras_vit.layers.position_grid import resize_position_embedding

RESIZE_CHOICES = ("auto", "authors", "timm", "huggingface", *RESIZE_METHODS)

_POSITION_TABLE = re.compile(r"^position_embs(_\d+)?/embedding$")
_KERAS_RESIZE = {"swin": "bicubic"}  # other families resize as the official ViT code does
_MOST_TIMES = 64  # maximum size of a table, relative to the model's: eight times the side of the grid


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The arrays of a file that one variable gets its value from.

    Attributes:
        variable: the variable.
        theirs: folded names of its arrays in the file.
        read: callable that reads its value, None if there is a problem.
        problem: why it has no value, or None.
        resized: description of the resize, or None.
        is_in_file: whether the file has such arrays at all.
    """

    variable: keras.Variable
    theirs: tuple = ()
    read: Callable | None = None
    problem: str | None = None
    resized: str | None = None
    is_in_file: bool = True

    @property
    def path(self):
        """Return the path of the variable."""
        return self.variable.path


class Assignments:
    """The arrays of a file, the config of the model that they are loaded into, and the resize method of tables."""

    def __init__(self, layout, entries, path, config, resize="auto", stored_grid=None):
        self.layout, self.entries, self._stored_grid = layout, entries, stored_grid
        self._path, self.config, self._resize = path, config, resize
        self._usual = _KERAS_RESIZE.get(config.network, "align_corners") if self.layout is None else self.layout.resize
        self._register_rows = None  # reads the rows of a position table that belong to registers

    def method(self, layer):
        """Return the resize method of a layer's tables.

        It is the user's; that of the library that the user names (`authors` is the layer's own); or, with `auto`, the
        layer's own for tables of offsets and for models with `embedding.resize`, else that of the file's layout.
        Google's files are resized as Google's code does, also where other authors resize otherwise.
        """
        if isinstance(layer, DecomposedPositions):
            return layer.usual_method
        if self._resize in RESIZE_METHODS:
            return self._resize
        is_vit, is_bias = isinstance(self.config, ViTConfig), isinstance(layer, AttentionBias)
        if self._resize == "timm":
            return "geometric" if is_bias else "bicubic_antialias"
        if self._resize == "huggingface":
            is_dinov2_with_registers = is_vit and self.config.layer_scale_init and self.config.num_registers
            return "bilinear" if is_bias else "bicubic_antialias" if is_dinov2_with_registers else "bicubic"
        is_of_google = self.layout is not None and self.layout.library == "official" and self._resize == "auto"
        if is_bias or (is_vit and self.config.embedding.resize and not is_of_google):
            return layer.resize_method
        return layer.resize_method if self._resize == "authors" else self._usual

    def of(self, owned):
        """Return the assignments; tables are first, because they show how many rows belong to registers."""
        has_tables = self.layout is None or self.layout.position_tables  # that of a text tower is like other arrays
        tables = [one for one in owned if has_tables and _POSITION_TABLE.match(one.variable.path)]
        tables = {id(one): self._table(one) for one in tables}
        return [tables.get(id(one)) or self._plain(one) for one in owned]

    def table_method(self, owned):
        """Return the method that resizes the position tables among variables, None without one."""
        return next((self.method(one.layer) for one in owned if _POSITION_TABLE.match(one.variable.path)), None)

    def _plain(self, one):
        """Return the assignment of a variable other than a position table."""
        variable, rule = one.variable, Rule(one.variable.path, (one.stored_name,))
        if self.layout is not None:
            rule = names.find_rule(self.layout, variable.path, self.config, self.entries)
        if rule is None:
            problem = f"{variable.path}: files of this layout have no such array"
            return Assignment(variable, problem=problem, is_in_file=False)
        absent = [name for name in rule.theirs if name not in self.entries]
        if absent:
            problem = f"{', '.join(absent)} (for {variable.path})"
            return Assignment(variable, rule.theirs, problem=problem, is_in_file=False)
        shape, is_float = list(variable.shape), keras.backend.is_float_dtype(variable.dtype)
        if len(rule.theirs) > 1:
            shape[rule.axis] //= len(rule.theirs)
        wanted = theirs_shape(shape, rule.form, self.config.field("num_heads"))
        for name in rule.theirs:
            if self.entries[name].is_floating != is_float:
                hint = "convert the file with its scales to floating point" if is_float else "quantize after loading"
                kind = f"dtype {self.entries[name].dtype}, the model needs {variable.dtype}"
                return Assignment(variable, rule.theirs, problem=f"{name}: {kind} ({hint})")
        is_turned = self._old_size(one) not in (None, self.config.field("grid_size"))
        for name in rule.theirs:
            if self.entries[name].shape != wanted or is_turned:
                return self._of_rgb(one, rule, name, shape) or self._resized(one, rule, name, wanted)
        return Assignment(variable, rule.theirs, functools.partial(self._join, variable, rule, shape))

    def _resized(self, one, rule, name, wanted):
        """Return that of an array of another shape; only layers that depend on the input size can resize it."""
        variable, entry, resize = one.variable, self.entries[name], getattr(one.layer, "resized", None)
        shape = None
        if resize is not None and len(rule.theirs) == 1:
            if too_large := _too_large(name, entry, variable):
                return Assignment(variable, rule.theirs, problem=too_large)
            method, old = self.method(one.layer), self._old_size(one)
            with contextlib.suppress(ValueError):  # the width differs
                shape = resize(variable, np.broadcast_to(np.float32(0), entry.shape), method, old).shape
        if shape != tuple(wanted):
            return Assignment(variable, rule.theirs, problem=f"{name}: shape {entry.shape}, the model needs {wanted}")
        resized = f"{name}: {entry.shape} -> {wanted} ({method})"
        return Assignment(variable, rule.theirs, lambda: resize(variable, entry.read(), method, old), resized=resized)

    def _of_rgb(self, one, rule, name, shape):
        """Return that of a first kernel that the file has for RGB and the model for other channels, or None."""
        variable, entry, count, rgb = one.variable, self.entries[name], self.config.field("channels"), list(shape)
        if variable.path not in channels.FIRST_KERNELS or shape[2] != count:  # a stem may come before the patches
            return None
        rgb[2] = channels.RGB
        if entry.shape != theirs_shape(rgb, rule.form, None):
            return None
        read = lambda: channels.for_channels(to_ours(entry.read(), rule.form, rgb), count)  # noqa: E731
        how = f"{name}: {channels.RGB} -> {count} channels ({channels.described(count, one.layer)})"
        return Assignment(variable, rule.theirs, read, resized=how)

    def _old_size(self, one):
        """Return the stated grid of a table of offsets between patches, None if the shape shows it."""
        return self._stored_grid if isinstance(one.layer, AttentionBias) else None

    def _join(self, variable, rule, shape):
        """Return the value of a variable in memory of its own; the arrays of the file may be views of it."""
        array = aligned_zeros(tuple(variable.shape), variable.dtype)
        parts = np.split(array, len(rule.theirs), rule.axis) if len(rule.theirs) > 1 else [array]
        for name, part in zip(rule.theirs, parts, strict=True):
            piece = to_ours(self.entries[name].read(), rule.form, shape)
            if variable.path == "class_token/registers" and self._register_rows:
                piece = piece + self._register_rows()  # the file adds positions to its registers; ours have none
            if part is array and piece.flags.writeable and piece.flags.c_contiguous and piece.dtype == array.dtype:
                array = piece  # has its own memory already
            else:
                fill(part, piece)
        if variable.path == "head/kernel" and not array.any():
            warnings.warn(
                f"the head in {self._path} is all zeros, as in the raw ImageNet-21k files of 2020: every class gets "
                "the same score until the head is trained",
                stacklevel=2,
            )
        return array

    def _table(self, one):
        """Return the assignment of a position table."""
        config, variable, method = self.config, one.variable, self.method(one.layer)
        tables = {one.stored_name: ("class",)} if self.layout is None else self.layout.position_tables
        name = next((name for name in tables if name in self.entries), None)
        if name is None:
            problem = f"{next(iter(tables), 'a position table')} (for {variable.path})"
            return Assignment(variable, problem=problem, is_in_file=False)
        entry, new_grid, class_rows = self.entries[name], config.table_grid, config.num_position_rows
        if len(entry.shape) != 3 or (entry.shape[0], entry.shape[2]) != (1, config.hidden_dim) or not entry.is_floating:
            got = f"{entry.dtype} of shape {entry.shape}"
            wanted = f"floating point of shape (1, rows, {config.hidden_dim})"
            return Assignment(variable, (name,), problem=f"{name}: {got}, the model needs {wanted}")
        if too_large := _too_large(name, entry, variable):
            return Assignment(variable, (name,), problem=too_large)
        num_class = self._num_tokens("class_token/class_token", config.num_class_tokens)
        num_registers = self._num_tokens("class_token/registers", config.num_registers)
        of_file = num_class, num_registers, self._stored_grid
        try:
            prefix, grid = PositionTable.of(entry.shape[1], tables[name], *of_file).split(new_grid)
        except ValueError as error:
            return Assignment(variable, (name,), problem=f"{name}: {error}")
        if prefix and class_rows < config.num_class_tokens:
            problem = f"{name}: it has positions of class tokens; the model has embedding.class_position=False"
            return Assignment(variable, (name,), problem=problem)
        if prefix > class_rows:
            self._register_rows = lambda: entry.read()[:, class_rows:prefix]

        def read():
            # Without class rows, the class token has no positions in the file; rows of zeros give the same sum.
            table = entry.read()
            rows = table[:, : min(prefix, class_rows)]
            zeros = np.zeros((1, class_rows - rows.shape[1], table.shape[2]), table.dtype)
            resized = resize_position_embedding(table[:, prefix:], grid, new_grid, 0, method)
            return np.concatenate([rows, zeros, resized], axis=1)

        told = f"{name}: {grid[0]} x {grid[1]} -> {new_grid[0]} x {new_grid[1]} ({method})"
        return Assignment(variable, (name,), read, resized=None if grid == new_grid else told)

    def _num_tokens(self, path, own):
        """Return the number of class tokens or registers of the file; the model's if one of them has no such array."""
        rule = None if self.layout is None or not own else names.find_rule(self.layout, path, self.config)
        entries = [self.entries.get(name) for name in rule.theirs] if rule else [None]
        is_there = all(entry and len(entry.shape) == 3 for entry in entries)
        return sum(entry.shape[1] for entry in entries) if is_there else own


def _too_large(name, entry, variable):
    """Return the problem of a table that is too large to be resized, or None."""
    if math.prod(entry.shape) <= _MOST_TIMES * math.prod(variable.shape):
        return None
    more = f"more than {_MOST_TIMES} times the values of the model's {tuple(variable.shape)}"
    return f"{name}: shape {tuple(entry.shape)} has {more}"
