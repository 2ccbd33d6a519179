"""The source in a file of each variable's value, matched by names and shapes before any array is read."""

import dataclasses
import re
import warnings
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.checkpoints import names, position_tables
from keras_vit.checkpoints.folding import fold_entries
from keras_vit.compat.graph import owned_variables
from keras_vit.compat.initial_values import aligned_empty

_POSITION_TABLE = re.compile(r"^position_embs(_\d+)?/embedding$")


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of one variable's value.

    Attributes:
        variable: the variable.
        theirs: folded names of its arrays in the file.
        read: callable that reads its value, None if there is a problem.
        problem: why it has no value, or None.
        resized: description of the resize, or None.
        is_in_file: whether the file has such arrays at all.
    """

    variable: object
    theirs: tuple
    read: Callable | None = None
    problem: str | None = None
    resized: str | None = None
    is_in_file: bool = True

    @property
    def path(self):
        """Return the path of the variable."""
        return self.variable.path


class File:
    """A checkpoint with its `Description`, and the model that it is loaded into."""

    def __init__(self, checkpoint, description, model):
        self.checkpoint = checkpoint
        self.layout = layout = description.names
        self._grid_size = description.grid_size
        self.config = model.config
        self.entries = fold_entries(checkpoint, layout)
        self._owned = owned_variables(model)

    def sources(self, resize):
        """Return one `Source` per variable; `resize` is a method or `auto`, the family's."""
        method = position_tables.method_of(self.layout, self.config.family) if resize == "auto" else resize
        tables = {id(o.variable): self._table(o, method) for o in self._owned if _is_position_table(o)}
        num_prefix = next((prefix for _, prefix in tables.values()), 0)
        sources = []
        for owned in self._owned:
            if id(owned.variable) in tables:
                sources.append(tables[id(owned.variable)][0])
                continue
            source = self._plain(owned, method)
            if owned.variable.path == "class_token/registers" and num_prefix > self.config.num_class_tokens:
                source = self._with_rows(source, num_prefix)
            sources.append(source)
        return sources

    def part(self, *layers):
        """Return the folded names of some layers, such as `head`, in the file."""
        if self.layout is None:
            return {name for name in self.entries if name.partition("/")[0] in layers}
        known = {name for layer in layers for rule in names.rules_of(self.layout, layer) for name in rule.theirs}
        return known & set(self.entries)

    def _rule(self, owned):
        if self.layout is not None:
            return names.find_rule(self.layout, owned.variable.path, self.config)
        return names.Rule(owned.variable.path, (owned.stored_name,))

    def _plain(self, owned, method):
        variable, rule = owned.variable, self._rule(owned)
        if rule is None:
            problem = f"{variable.path}: files of this layout have no such array"
            return Source(variable, (), problem=problem, is_in_file=False)
        absent = [name for name in rule.theirs if name not in self.entries]
        if absent:
            problem = f"{', '.join(absent)} (for {variable.path})"
            return Source(variable, rule.theirs, problem=problem, is_in_file=False)
        shape = list(variable.shape)
        if len(rule.theirs) > 1:
            shape[rule.axis] //= len(rule.theirs)
        wanted = names.theirs_shape(shape, rule.form, getattr(self.config, "num_heads", None))
        is_float = keras.backend.is_float_dtype(variable.dtype)
        odd = [name for name in rule.theirs if self.entries[name].is_floating != is_float]
        if odd:
            kind = f"dtype {self.entries[odd[0]].dtype}, the model needs {variable.dtype}"
            hint = "convert the file with its scales to floating point" if is_float else "quantize after loading"
            return Source(variable, rule.theirs, problem=f"{odd[0]}: {kind} ({hint})")
        wrong = [name for name in rule.theirs if self.entries[name].shape != wanted]
        if not wrong:
            return Source(variable, rule.theirs, lambda: self._join(variable, rule, shape))
        return self._resized(owned, rule, wrong[0], wanted, method)

    def _resized(self, owned, rule, name, wanted, method):
        """Return the source of an array of another shape; only layers that depend on the input size can resize it."""
        entry, resize = self.entries[name], getattr(owned.layer, "resized", None)
        try:
            if resize is None or len(rule.theirs) > 1:
                raise ValueError("its shape is fixed")
            if too_large := position_tables.exceeds(entry.shape, owned.variable.shape):
                return Source(owned.variable, rule.theirs, problem=f"{name}: {too_large}")
            if resize(owned.variable, np.broadcast_to(np.float32(0), entry.shape), method).shape != tuple(wanted):
                raise ValueError("its width is another")
        except ValueError:
            problem = f"{name}: shape {entry.shape}, the model needs {wanted}"
            return Source(owned.variable, rule.theirs, problem=problem)
        resized = f"{name}: {entry.shape} -> {wanted} ({method})"
        return Source(
            owned.variable, rule.theirs, lambda: resize(owned.variable, entry.read(), method), resized=resized
        )

    def _join(self, variable, rule, shape):
        pieces = [names.to_ours(self.entries[name].read(), rule.form, shape) for name in rule.theirs]
        array = pieces[0]
        if len(pieces) > 1:
            array = np.concatenate(pieces, axis=rule.axis, out=aligned_empty(tuple(variable.shape), "float32"))
        if variable.path == "head/kernel" and not array.any():
            warnings.warn(
                f"the head in {self.checkpoint.path} is all zeros, as in the raw ImageNet-21k files of 2020: every "
                "class gets the same score until the head is trained",
                stacklevel=2,
            )
        return array

    def _table(self, owned, method):
        """Return the source of a position table, and the number of prefix rows in the file's table."""
        config, variable = self.config, owned.variable
        tables = {owned.stored_name: ("class",)} if self.layout is None else self.layout.position_tables
        name = next((name for name in tables if name in self.entries), None)
        if name is None:
            problem = f"{next(iter(tables), 'a position table')} (for {variable.path})"
            return Source(variable, (), problem=problem, is_in_file=False), 0
        shape = self.entries[name].shape
        if len(shape) != 3 or (shape[0], shape[2]) != (1, config.hidden_dim) or not self.entries[name].is_floating:
            got = f"{self.entries[name].dtype} of shape {shape}"
            problem = f"{name}: {got}, the model needs floating point of shape (1, rows, {config.hidden_dim})"
            return Source(variable, (name,), problem=problem), 0
        num_class, num_registers = self._prefix_tokens()
        counts = {"class": num_class, "class and registers": num_class + num_registers, "none": 0}
        prefixes = list(dict.fromkeys(counts[key] for key in tables[name]))
        if too_large := position_tables.exceeds(shape, variable.shape):
            return Source(variable, (name,), problem=f"{name}: {too_large}"), 0
        try:
            stored_grid = position_tables.stored_grid(self.checkpoint) or self._grid_size
            num_prefix, grid = position_tables.split_table(shape[1], prefixes, config.grid_size, stored_grid)
        except ValueError as error:
            return Source(variable, (name,), problem=f"{name}: {error}"), 0
        resized = None
        if grid != config.grid_size:
            new = config.grid_size
            resized = f"{name}: {grid[0]} x {grid[1]} -> {new[0]} x {new[1]} ({method})"

        def read():
            table = self.entries[name].read()
            return position_tables.fit_table(table, num_prefix, grid, config.num_class_tokens, config.grid_size, method)

        return Source(variable, (name,), read, resized=resized), num_prefix

    def _prefix_tokens(self):
        """Return the numbers of class tokens and registers of the file; the model's if it has no such array."""
        config = self.config
        own = {"class_token/class_token": config.num_class_tokens, "class_token/registers": config.num_registers}
        if self.layout is None:
            return tuple(own.values())
        counts = []
        for path, count in own.items():
            rule = names.find_rule(self.layout, path, config)
            entries = [self.entries.get(name) for name in rule.theirs] if rule else [None]
            is_there = all(entry and len(entry.shape) == 3 for entry in entries)
            counts.append(sum(entry.shape[1] for entry in entries) if is_there else count)
        return tuple(counts)

    def _with_rows(self, source, num_prefix):
        """Return the source of registers whose file has position rows for them, which are added, as ours have none."""
        name = next(name for name in self.layout.position_tables if name in self.entries)
        num_class = self.config.num_class_tokens

        def read():
            rows = position_tables.register_rows(self.entries[name].read(), num_prefix, num_class)
            return source.read() + rows

        return source if source.problem else dataclasses.replace(source, read=read)


def _is_position_table(owned):
    return _POSITION_TABLE.match(owned.variable.path) is not None
