"""load_weights: a strict merge of a file into a built model, with a report of both sides."""

import dataclasses
import warnings
from collections.abc import Callable

import numpy as np

from keras_vit import checks
from keras_vit.checkpoints import names, position_tables
from keras_vit.checkpoints.description import Description, describe
from keras_vit.checkpoints.entries import Checkpoint
from keras_vit.checkpoints.folding import fold_entries
from keras_vit.checkpoints.locate import locate
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.report import LoadReport
from keras_vit.compat.initial_values import aligned_empty

HEAD_CHOICES = ("auto", "load", "reinitialise")


def load_weights(model, source, *, layout="auto", resize="auto", head="auto"):
    """Loads a file of weights into a model, strictly: every array must find its variable and every variable its array.

    Only three things may differ: the size of the image (the position table is resized), the head (see `head`), and
    `pre_logits`, which fine-tuning drops together with the head that read it. If it raises, nothing has changed.

    Args:
        model: a model of this package.
        source: path of an `.npz`, `.safetensors`, `.weights.h5` or `.keras` file or of a folder with `config.json` and
            `model.safetensors`; name of a release; or `hf://org/repo`. See `locate`.
        layout: names of the arrays: `auto`, `official` (vit_jax, big_vision), `timm`, `huggingface` or `keras`.
        resize: how a position table of another grid is resized: `auto` is the way of the file's family;
            see `resize_position_embedding` for the others.
        head: `auto` loads the head if its classes are the model's and reinitialises it otherwise, `load` insists,
            `reinitialise` leaves it at its initial value.

    Returns:
        A `LoadReport`; it is printed as well.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if an array is missing, extra, damaged or of another shape; the message lists all of them.
    """
    path, _ = locate(source, model.config.name, model.config.image_size)
    checkpoint = open_checkpoint(path)
    plan = make_plan(model, checkpoint, layout=layout, resize=resize, head=head)
    values = [(variable, plan.values[id(variable)]()) for variable in model.weights]
    for variable, value in values:
        variable.assign(value)
    print(plan.report)
    return plan.report


@dataclasses.dataclass(frozen=True)
class Plan:
    """What each variable of a model will be.

    Attributes:
        values: dict from `id(variable)` to a callable that reads its array (or makes its initial value).
        report: the `LoadReport`.
        description: `Description` of the file.
        head_loaded: whether the logits will be the file's.
    """

    values: dict
    report: LoadReport
    description: Description
    head_loaded: bool


def make_plan(model, checkpoint, *, layout="auto", resize="auto", head="auto"):
    """Matches a file and a model by names and shapes, before any array is read; see `load_weights`."""
    checks.check_choice("head", head, HEAD_CHOICES)
    position_tables.check_method(resize)
    description = describe(checkpoint, layout)
    file = _File(checkpoint, description.layout, fold_entries(checkpoint, description.layout), model.config)
    sources = file.sources(model.weights, resize)
    if head != "auto" and not _has(sources, "head"):
        raise ValueError(f"head={head!r} is for a model with a head; {model.config.name} has include_top=False")
    fresh = _fresh_head(file, sources, head)
    loaded = [source for source in sources if source.path not in fresh]
    used = {name for source in loaded for name in source.theirs}
    droppable = file.part("head") if fresh or not _has(sources, "head") else set()
    if not _has(sources, "pre_logits"):
        droppable = droppable | file.part("pre_logits")
    _check_strict(checkpoint, loaded, sorted(set(file.entries) - used - droppable))
    originals = {file.entries[name].name for name in used} | {position_tables.GRID}
    report = LoadReport(
        used=tuple(name for name in checkpoint.entries if name in originals),
        resized=tuple(source.resized for source in loaded if source.resized),
        reinitialised=tuple(source.path for source in sources if source.path in fresh),
        unused=tuple(name for name in checkpoint.entries if name not in originals),
        missing=tuple(source.path for source in sources if source.path in fresh and not source.is_in_file),
        source=f"{checkpoint.path} ({description.layout} names)",
        notes=_notes(model.config, description, file, sources),
    )
    values = {
        id(source.variable): _initial(source.variable) if source.path in fresh else source.read for source in sources
    }
    return Plan(values, report, description, head_loaded=not fresh and _has(sources, "head"))


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where the value of one variable comes from; `problem` says why it cannot."""

    variable: object
    theirs: tuple
    read: Callable | None = None
    problem: str | None = None
    resized: str | None = None
    is_in_file: bool = True

    @property
    def path(self):
        return self.variable.path


@dataclasses.dataclass(frozen=True)
class _File:
    """The folded entries of a checkpoint and how they become variables of a model of `config`."""

    checkpoint: Checkpoint
    layout: str
    entries: dict
    config: object

    def sources(self, weights, resize):
        """One `_Source` per variable."""
        paths = [variable.path for variable in weights]
        positions = {}
        for path, variable in zip(paths, weights, strict=True):
            if path == "position_embs/embedding":
                positions[path] = self._table(variable, resize)
        num_prefix = next((prefix for _, prefix in positions.values()), 0)
        sources = []
        for path, variable in zip(paths, weights, strict=True):
            if path in positions:
                sources.append(positions[path][0])
            else:
                sources.append(self._plain(variable, self._rule(path, paths)))
                if path == "class_token/registers" and num_prefix > self.config.num_class_tokens:
                    sources[-1] = self._with_rows(sources[-1], num_prefix)
        return sources

    def part(self, layer):
        """The folded names of `head` or `pre_logits` in the file."""
        if self.layout == "keras":
            return {name for name in self.entries if name.startswith(f"{layer}/")}
        rules = names.LAYOUTS[self.layout].rules
        known = {name for rule in rules if rule.ours.startswith(f"{layer}/") for name in rule.theirs}
        return known & set(self.entries)

    def _rule(self, path, paths):
        if self.layout != "keras":
            return names.find_rule(self.layout, path, self.config.norm_position)
        layer = path.rpartition("/")[0]
        siblings = [other for other in paths if other.rpartition("/")[0] == layer]
        return names.Rule(path, (f"{layer}/{siblings.index(path)}",))

    def _plain(self, variable, rule):
        if rule is None:
            problem = f"{variable.path}: {self.layout} files have no such array"
            return _Source(variable, (), problem=problem, is_in_file=False)
        absent = [name for name in rule.theirs if name not in self.entries]
        if absent:
            problem = f"{', '.join(absent)} (for {variable.path})"
            return _Source(variable, rule.theirs, problem=problem, is_in_file=False)
        shape = (*variable.shape[:-1], variable.shape[-1] // len(rule.theirs))
        wanted = names.theirs_shape(shape, rule.form, self.config.num_heads)
        wrong = [name for name in rule.theirs if self.entries[name].shape != wanted]
        if wrong:
            got = self.entries[wrong[0]].shape
            return _Source(variable, rule.theirs, problem=f"{wrong[0]}: shape {got}, the model needs {wanted}")
        return _Source(variable, rule.theirs, lambda: self._join(variable, rule, shape))

    def _join(self, variable, rule, shape):
        pieces = [names.to_ours(self.entries[name].read(), rule.form, shape) for name in rule.theirs]
        array = pieces[0]
        if len(pieces) > 1:
            joined = aligned_empty((*shape[:-1], shape[-1] * len(pieces)), "float32")
            array = np.concatenate(pieces, axis=-1, out=joined)
        if variable.path == "head/kernel" and not array.any():
            warnings.warn(
                f"the head in {self.checkpoint.path} is all zeros, as in the raw ImageNet-21k files of 2020: every "
                "class gets the same score until the head is trained",
                stacklevel=2,
            )
        return array

    def _table(self, variable, resize):
        """The source of the position table and how many prefix rows the file's table has."""
        config = self.config
        tables = {"position_embs/0": ("class",)}
        if self.layout != "keras":
            tables = names.LAYOUTS[self.layout].position_tables
        name = next((name for name in tables if name in self.entries), None)
        if name is None:
            return _Source(variable, (), problem=f"{next(iter(tables))} (for {variable.path})", is_in_file=False), 0
        shape = self.entries[name].shape
        if len(shape) != 3 or (shape[0], shape[2]) != (1, config.hidden_dim):
            problem = f"{name}: shape {shape}, the model needs (1, rows, {config.hidden_dim})"
            return _Source(variable, (name,), problem=problem), 0
        num_class, num_registers = self._prefix_tokens()
        counts = {"class": num_class, "class and registers": num_class + num_registers, "none": 0}
        prefixes = list(dict.fromkeys(counts[key] for key in tables[name]))
        stored_grid = position_tables.stored_grid(self.checkpoint)
        try:
            num_prefix, grid = position_tables.split_table(shape[1], prefixes, config.grid_size, stored_grid)
        except ValueError as error:
            return _Source(variable, (name,), problem=f"{name}: {error}"), 0
        method = position_tables.method_of(self.layout) if resize == "auto" else resize
        resized = None
        if grid != config.grid_size:
            new = config.grid_size
            resized = f"{name}: {grid[0]} x {grid[1]} -> {new[0]} x {new[1]} ({method})"

        def read():
            table = self.entries[name].read()
            return position_tables.fit_table(
                table, num_prefix, grid, config.num_class_tokens, config.grid_size, method
            )

        return _Source(variable, (name,), read, resized=resized), num_prefix

    def _prefix_tokens(self):
        """Class tokens and registers of the file; where it has no such array, those of the model."""
        config = self.config
        own = {"class_token/class_token": config.num_class_tokens, "class_token/registers": config.num_registers}
        if self.layout == "keras":
            return tuple(own.values())
        counts = []
        for path, count in own.items():
            rule = names.find_rule(self.layout, path, self.config.norm_position)
            entry = self.entries.get(rule.theirs[0]) if rule else None
            counts.append(entry.shape[1] if entry and len(entry.shape) == 3 else count)
        return tuple(counts)

    def _with_rows(self, source, num_prefix):
        """Registers of a file whose table has rows for them: the sum, for ours have no rows."""
        name = next(name for name in names.LAYOUTS[self.layout].position_tables if name in self.entries)
        num_class = self.config.num_class_tokens

        def read():
            rows = position_tables.register_rows(self.entries[name].read(), num_prefix, num_class)
            return source.read() + rows

        return source if source.problem else dataclasses.replace(source, read=read)


def _fresh_head(file, sources, head):
    """Paths of the head's variables if it is to be reinitialised, else the empty set."""
    of_head = [source for source in sources if source.path.startswith("head/")]
    drops_pre_logits = bool(file.part("pre_logits")) and not _has(sources, "pre_logits")
    does_not_fit = any(source.problem for source in of_head)
    if head == "reinitialise" or (head == "auto" and (does_not_fit or drops_pre_logits)):
        return {source.path for source in of_head}
    return set()


def _has(sources, layer):
    return any(source.path.startswith(f"{layer}/") for source in sources)


def _check_strict(checkpoint, loaded, extra):
    problems = [source for source in loaded if source.problem]
    if not problems and not extra:
        return
    lines = [f"{str(checkpoint.path)!r} does not fit the model:"]
    lines += [f"  - missing {source.problem}" for source in problems if not source.is_in_file]
    lines += [f"  ! {source.problem}" for source in problems if source.is_in_file]
    lines += [f"  + extra {name}" for name in extra]
    raise ValueError("\n".join(lines))


def _notes(config, description, file, sources):
    notes = [description.note] if description.note else []
    for name in ("gelu", "epsilon"):
        theirs, ours = getattr(description, name), getattr(config, name)
        if theirs is not None and theirs != ours:
            notes.append(f"the file was trained with {name}={theirs!r}; the model has {ours!r}")
    if file.part("pre_logits") and not _has(sources, "pre_logits"):
        notes.append("pre_logits is dropped, as in the paper's fine-tuning, and with it the head that read it")
    if description.layout == "keras" and description.gelu is None:
        notes.append("a .weights.h5 file does not tell its GELU and epsilon: the model's are assumed")
    return tuple(notes)


def _initial(variable):
    """The head starts at zero (kernel and bias), see `models.vit`."""
    return lambda: np.zeros(variable.shape, "float32")


