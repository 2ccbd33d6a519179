"""Match a file and a model by names and shapes, before any array is read, with a report about both."""

import collections
import contextlib
import dataclasses
import functools
import math
import re
import warnings
from collections.abc import Callable, Mapping

import keras
import numpy as np

from keras_vit import checks
from keras_vit.checkpoints import channels, names
from keras_vit.checkpoints.evidence import Evidence
from keras_vit.checkpoints.names.rules import Rule, fill, theirs_shape, to_ours
from keras_vit.checkpoints.shown import note_on_size, split_table
from keras_vit.compat.graph import owned_variables
from keras_vit.compat.initial_values import aligned_zeros
from keras_vit.config import ViTConfig
from keras_vit.config.base import RESIZE_METHODS
from keras_vit.config.unseen import DECLARED, differences, unseen
from keras_vit.layers.grid_attention import DecomposedPositions
from keras_vit.layers.position_bias import AttentionBias
from keras_vit.layers.position_grid import resize_position_embedding

RESIZE_CHOICES = ("auto", "authors", "timm", "huggingface", *RESIZE_METHODS)

_HEADS = ("head", "head_dist")  # a distilled model has both
_NEW_HEAD = " (head='reinitialise' loads the rest)"
_OF_HEAD, _MASKED = "of a head that is not loaded", "a masked bias, which is zero"
_SHOWN = 6  # maximum number of names in one line of a report
_POSITION_TABLE = re.compile(r"^position_embs(_\d+)?/embedding$")
_KERAS_RESIZE = {"swin": "bicubic"}  # other families resize as the official ViT code does
_MOST_TIMES = 64  # maximum size of a table, relative to the model's: eight times the side of the grid


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Report what `load_weights` did.

    Attributes:
        used: names of the file's arrays that were loaded.
        resized: descriptions, one per resized position table, and one of the first kernel if the images of the model
            have other channels than RGB.
        reinitialised: paths of variables that got their initial value instead of the file's.
        unused: dict from the names of the file's arrays that were not loaded to the reason.
        missing: paths of variables that the file does not have, a subset of `reinitialised`.
        source: file and layout of the arrays.
        notes: notes about the file, such as another GELU or epsilon.
        assumed: config fields, as `name=value`, that the file does not state and no shape shows.
        sources: dict from config fields to the sources of their values, if the model was built for the file.
    """

    used: tuple[str, ...]
    resized: tuple[str, ...]
    reinitialised: tuple[str, ...]
    unused: Mapping[str, str]
    missing: tuple[str, ...]
    source: str = ""
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self):
        listed = {"resized": self.resized, "reinitialised": self.reinitialised}
        for reason in dict.fromkeys(self.unused.values()):
            listed[f"unused ({reason})"] = tuple(name for name in self.unused if self.unused[name] == reason)
        listed["missing"] = self.missing
        hidden = [name for name in self.sources if name in DECLARED and DECLARED[name].stated]
        for source in dict.fromkeys(self.sources[name] for name in hidden):
            listed[f"from {source}"] = tuple(name for name in hidden if self.sources[name] == source)
        lines = [f"Loaded {len(self.used)} arrays of {self.source}"]
        for title, listed_names in listed.items():
            more = f" and {len(listed_names) - _SHOWN} more" if len(listed_names) > _SHOWN else ""
            lines += [f"  {title}: {', '.join(listed_names[:_SHOWN])}{more}"] if listed_names else []
        lines += [f"  note: {note}" for note in self.notes]
        if self.assumed:
            lines.append(f"  assumed, as the file does not state them: {', '.join(self.assumed)}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The future value of each variable of a model.

    Attributes:
        values: dict from `id(variable)` to a callable that reads its array (or makes its initial value).
        report: the `LoadReport`.
        evidence: `Evidence` of the file.
        head_loaded: whether the head comes from the file.
        warnings: differences to report for a model that already exists.
        resize: method that resizes the position tables of the file to another grid; None if it has none.
        kept: config of the model with the resize method that the user chose; None if the user chose none.
    """

    values: dict
    report: LoadReport
    evidence: Evidence
    head_loaded: bool
    warnings: tuple
    resize: str | None
    kept: ViTConfig | None


class WeightsMismatch(ValueError):
    """The arrays of a file do not match the variables of a model; `problems` has one line per difference."""

    def __init__(self, path, problems):
        super().__init__("\n".join([f"{str(path)!r} does not fit the model:", *map(checks.shortened, problems)]))
        self.path, self.problems = path, problems


def make_plan(model, evidence, resize="auto", head="auto"):
    """Match a described file and a model by names and shapes before any array is read; see `load_weights`.

    Raises:
        WeightsMismatch: if an array is missing, unexpected or of another shape, or the file states another
            architecture.
    """
    config, checkpoint = model.config, evidence.checkpoint
    if resize == "auto" and "embedding.resize" in evidence.stated:
        resize = config.field("embedding.resize") or evidence.stated["embedding.resize"]
    file = _File(evidence.names, evidence.entries, checkpoint.path, config, resize, evidence.grid_size)
    assumed, owned = unseen(config.to_dict()), owned_variables(model)
    chosen = next((file.method(o.layer) for o in owned if resize != "auto" and hasattr(o.layer, "resize")), None)
    kept = None if chosen is None else config.replace(**{"embedding.resize": chosen})
    different, unusual = (differences(values, kept or config) for values in (evidence.stated, evidence.usual))
    # Tables are first, because they show how many rows belong to registers.
    tables = {id(o.variable): file.table(o) for o in owned if _POSITION_TABLE.match(o.variable.path)}
    sources = [tables.get(id(o.variable)) or file.plain(o) for o in owned]

    of_head = [source for source in sources if source.path.partition("/")[0] in _HEADS]
    if head != "auto" and not of_head:
        raise ValueError(f"head={head!r} is for a model with a head; {config.name} has include_top=False")
    is_dropped = bool(evidence.pre_logits) and not any(source.path.startswith("pre_logits/") for source in sources)
    widths = {getattr(config, "hidden_dim", None), *(x.variable.shape[0] for x in of_head if x.path == "head/kernel")}
    is_other = is_dropped or evidence.has_other_head(config.field("classes"), widths - {None})
    is_fresh = head == "reinitialise" or (head == "auto" and is_other)
    fresh = {source.path: source for source in of_head} if is_fresh else {}
    head_loaded = bool(of_head) and not is_fresh
    loaded = [source for source in sources if source.path not in fresh]
    droppable = (evidence.pre_logits if is_dropped else set()) | (set() if head_loaded else evidence.heads)
    if config.field("head.bias") is False and not evidence.has_head_bias():
        droppable |= {name for name in evidence.heads if name.endswith("bias")}
    told = [d for d in different if d.is_close or d.about.resized or (d.about.of_head and not head_loaded)]
    is_converted = any(source.resized for source in loaded if source.path in channels.FIRST_KERNELS)  # from RGB
    told += [d for d in different if d.name == "classifier_activation" or (d.name == "channels" and is_converted)]

    problems = [f"  ! {d}{_NEW_HEAD if d.about.of_head else ''}" for d in different if d not in told]
    if is_converted and evidence.stated.get("channels", channels.RGB) != channels.RGB:
        problems.append(f"  ! the file states channels={evidence.stated['channels']}; its arrays are for RGB")
    if problems := problems + _problems(loaded, evidence.entries.keys() - droppable):
        raise WeightsMismatch(checkpoint.path, problems)

    used = {evidence.entries[name].name for source in loaded for name in source.theirs}
    if evidence.layout == "keras":  # sizes of tables
        used |= {name for name in checkpoint.entries if name.endswith(("/grid", "/window_size"))}
    notes = [*evidence.notes, *map(str, told)]
    notes += [f"files of this layout have {name}={theirs!r}; the model has {ours!r}" for name, theirs, ours in unusual]
    if is_converted:
        notes.append(channels.note_on_images(config.channels))
    notes += note_on_size(config)
    if is_dropped:
        notes.append("pre_logits and its head are dropped, as in the paper's fine-tuning")
    reasons = {**evidence.left, **{evidence.entries[name].name: _OF_HEAD for name in droppable}}
    known = {*evidence.stated, *evidence.implied, *(name for name in assumed if DECLARED[name].resized)}
    report = LoadReport(
        used=tuple(name for name in checkpoint.entries if name in used),
        resized=tuple(source.resized for source in loaded if source.resized),
        reinitialised=tuple(fresh),
        unused={name: reasons.get(name, _MASKED) for name in checkpoint.entries if name not in used},
        missing=tuple(path for path, source in fresh.items() if not source.is_in_file),
        source=f"{checkpoint.path} ({evidence.layout} names)",
        notes=tuple(notes),
        assumed=tuple(f"{name}={value!r}" for name, value in assumed.items() if name not in known),
    )
    values = {id(source.variable): source.read for source in loaded}
    # A new head (kernel and bias) is zero, as in the paper's fine-tuning (section 3.2).
    values |= {id(x.variable): functools.partial(np.zeros, x.variable.shape, "float32") for x in fresh.values()}
    close = tuple(f"{checkpoint.path}: {difference}" for difference in told if difference.is_close)
    method = next((file.method(o.layer) for o in owned if id(o.variable) in tables), None)
    return Plan(values, report, evidence, head_loaded, close, method, kept)


def plan_equal(model, config, path, layout, entries):
    """Return {id(variable): callable that reads its array} for a Keras model with exactly the arrays of a file.

    Raises:
        WeightsMismatch: if an array is missing, unexpected or of another shape.
    """
    file = _File(layout, entries, path, config)
    sources = [file.plain(owned) for owned in owned_variables(model)]
    if problems := _problems(sources, entries.keys()):
        raise WeightsMismatch(path, problems)
    return {id(source.variable): source.read for source in sources}


def _problems(sources, needed):
    """Return the problems of sources that do not use each of the `needed` arrays, and fill each variable, once."""
    problems = [f"  - missing {source.problem}" for source in sources if source.problem and not source.is_in_file]
    problems += [f"  ! {source.problem}" for source in sources if source.problem and source.is_in_file]
    used = {name for source in sources for name in source.theirs}
    problems += [f"  + extra {name}" for name in sorted(needed - used)]
    uses = collections.defaultdict(list)
    for source in sources:
        for name in source.theirs:
            uses[f"{name} is used"].append(source.path)
        uses[f"{source.path} ({id(source.variable):#x}) is filled"].append(source.path)
    repeated = {use: paths for use, paths in uses.items() if len(paths) > 1}
    return problems + [f"  ! {use} {len(paths)} times: {', '.join(paths)}" for use, paths in repeated.items()]


@dataclasses.dataclass(frozen=True)
class _Source:
    """The source of one variable's value.

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


class _File:
    """The arrays of a file, the config of the model that they are loaded into, and the resize method of tables."""

    def __init__(self, layout, entries, path, config, method="auto", grid=None):
        self.layout, self.entries, self._stored_grid = layout, entries, grid
        self._path, self.config, self._way = path, config, method
        self._usual = _KERAS_RESIZE.get(config.family, "align_corners") if self.layout is None else self.layout.resize
        self._register_rows = None  # reads the rows of a position table that belong to registers

    def method(self, layer):
        """Return the resize method of a layer's tables: the authors', or that of the library that the user names."""
        if isinstance(layer, DecomposedPositions):
            return layer.usual_method
        if self._way in RESIZE_METHODS:
            return self._way
        is_vit, is_bias = isinstance(self.config, ViTConfig), isinstance(layer, AttentionBias)
        if self._way == "timm":
            return "geometric" if is_bias else "bicubic_antialias"
        if self._way == "huggingface":
            is_dinov2_with_registers = is_vit and self.config.layer_scale_init and self.config.num_registers
            return "bilinear" if is_bias else "bicubic_antialias" if is_dinov2_with_registers else "bicubic"
        is_of_google = self.layout is not None and self.layout.library == "official" and self._way == "auto"
        if is_bias or (is_vit and self.config.embedding.resize and not is_of_google):
            return layer.resize_method
        return layer.resize_method if self._way == "authors" else self._usual

    def plain(self, owned):
        """Return the source of a variable other than a position table."""
        variable, rule = owned.variable, Rule(owned.variable.path, (owned.stored_name,))
        if self.layout is not None:
            rule = names.find_rule(self.layout, variable.path, self.config, self.entries)
        if rule is None:
            problem = f"{variable.path}: files of this layout have no such array"
            return _Source(variable, problem=problem, is_in_file=False)
        absent = [name for name in rule.theirs if name not in self.entries]
        if absent:
            problem = f"{', '.join(absent)} (for {variable.path})"
            return _Source(variable, rule.theirs, problem=problem, is_in_file=False)
        shape, is_float = list(variable.shape), keras.backend.is_float_dtype(variable.dtype)
        if len(rule.theirs) > 1:
            shape[rule.axis] //= len(rule.theirs)
        wanted = theirs_shape(shape, rule.form, self.config.field("num_heads"))
        for name in rule.theirs:
            if self.entries[name].is_floating != is_float:
                hint = "convert the file with its scales to floating point" if is_float else "quantize after loading"
                kind = f"dtype {self.entries[name].dtype}, the model needs {variable.dtype}"
                return _Source(variable, rule.theirs, problem=f"{name}: {kind} ({hint})")
        is_turned = self._old_size(owned) not in (None, self.config.field("grid_size"))
        for name in rule.theirs:
            if self.entries[name].shape != wanted or is_turned:
                return self._of_rgb(owned, rule, name, shape) or self._resized(owned, rule, name, wanted)
        return _Source(variable, rule.theirs, functools.partial(self._join, variable, rule, shape))

    def _resized(self, owned, rule, name, wanted):
        """Return the source of an array of another shape; only layers that depend on the input size can resize it."""
        variable, entry, resize = owned.variable, self.entries[name], getattr(owned.layer, "resized", None)
        shape = None
        if resize is not None and len(rule.theirs) == 1:
            if too_large := _too_large(name, entry, variable):
                return _Source(variable, rule.theirs, problem=too_large)
            method, old = self.method(owned.layer), self._old_size(owned)
            with contextlib.suppress(ValueError):  # the width differs
                shape = resize(variable, np.broadcast_to(np.float32(0), entry.shape), method, old).shape
        if shape != tuple(wanted):
            return _Source(variable, rule.theirs, problem=f"{name}: shape {entry.shape}, the model needs {wanted}")
        resized = f"{name}: {entry.shape} -> {wanted} ({method})"
        return _Source(variable, rule.theirs, lambda: resize(variable, entry.read(), method, old), resized=resized)

    def _of_rgb(self, owned, rule, name, shape):
        """Return the source of a first kernel that the file has for RGB and the model for other channels, or None."""
        variable, entry, count, rgb = owned.variable, self.entries[name], self.config.field("channels"), list(shape)
        if variable.path not in channels.FIRST_KERNELS or shape[2] != count:  # a stem may come before the patches
            return None
        rgb[2] = channels.RGB
        if entry.shape != theirs_shape(rgb, rule.form, None):
            return None
        read = lambda: channels.for_channels(to_ours(entry.read(), rule.form, rgb), count)  # noqa: E731
        how = f"{name}: {channels.RGB} -> {count} channels ({channels.described(count, owned.layer)})"
        return _Source(variable, rule.theirs, read, resized=how)

    def _old_size(self, owned):
        """Return the stated grid of a table of offsets between patches, None if the shape shows it."""
        return self._stored_grid if isinstance(owned.layer, AttentionBias) else None

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

    def table(self, owned):
        """Return the source of a position table."""
        config, variable, method = self.config, owned.variable, self.method(owned.layer)
        tables = {owned.stored_name: ("class",)} if self.layout is None else self.layout.position_tables
        name = next((name for name in tables if name in self.entries), None)
        if name is None:
            problem = f"{next(iter(tables), 'a position table')} (for {variable.path})"
            return _Source(variable, problem=problem, is_in_file=False)
        entry, new_grid, class_rows = self.entries[name], config.table_grid, config.num_position_rows
        if len(entry.shape) != 3 or (entry.shape[0], entry.shape[2]) != (1, config.hidden_dim) or not entry.is_floating:
            got = f"{entry.dtype} of shape {entry.shape}"
            wanted = f"floating point of shape (1, rows, {config.hidden_dim})"
            return _Source(variable, (name,), problem=f"{name}: {got}, the model needs {wanted}")
        if too_large := _too_large(name, entry, variable):
            return _Source(variable, (name,), problem=too_large)
        num_class = self._num_tokens("class_token/class_token", config.num_class_tokens)
        num_registers = self._num_tokens("class_token/registers", config.num_registers)
        counts = {"class": num_class, "class and registers": num_class + num_registers, "none": 0}
        prefixes = dict.fromkeys(counts[key] for key in tables[name])
        try:
            prefix, grid = split_table(entry.shape[1], prefixes, new_grid, self._stored_grid)
        except ValueError as error:
            return _Source(variable, (name,), problem=f"{name}: {error}")
        if prefix and class_rows < config.num_class_tokens:
            problem = f"{name}: it has positions of class tokens; the model has embedding.class_position=False"
            return _Source(variable, (name,), problem=problem)
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
        return _Source(variable, (name,), read, resized=None if grid == new_grid else told)

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
