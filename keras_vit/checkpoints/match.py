"""Match a file and a model by names and shapes, before any array is read, with a report about both."""

import collections
import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from keras_vit import checks
from keras_vit.checkpoints import channels
from keras_vit.checkpoints.assignments import Assignments
from keras_vit.checkpoints.evidence import Evidence
from keras_vit.compat.graph import owned_variables
from keras_vit.config import ViTConfig
from keras_vit.config.unseen import DECLARED, differences, unseen
from keras_vit.models.copies import HEADS

_NEW_HEAD = " (head='reinitialise' loads the rest)"
OF_HEAD, _MASKED = "of a head that is not loaded", "a masked bias, which is zero"
_SHOWN = 6  # maximum number of names in one line of a report


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
        by_reason = collections.defaultdict(list)
        for name, reason in self.unused.items():
            by_reason[reason].append(name)
        listed = {"resized": _few(self.resized), "new head": ""}
        if self.reinitialised:
            of_file = by_reason.pop(OF_HEAD, ())
            instead = f", in place of {_few(of_file)} of the file" if of_file else "; the file has no head"
            is_zero = all(path.partition("/")[0] in HEADS for path in self.reinitialised)
            listed["new head"] = f"{_few(self.reinitialised)} start {'at zero' if is_zero else 'at random'}{instead}"
        listed |= {f"unused ({reason})": _few(names) for reason, names in by_reason.items()}
        hidden = [name for name in self.sources if name in DECLARED and DECLARED[name].unseen]
        for source in dict.fromkeys(self.sources[name] for name in hidden):
            listed[f"from {source}"] = _few([name for name in hidden if self.sources[name] == source])
        lines = [f"Loaded {len(self.used)} arrays of {self.source}"]
        lines += [f"  {title}: {text}" for title, text in listed.items() if text]
        lines += [f"  note: {note}" for note in self.notes]
        if self.assumed:
            lines.append(f"  assumed, as the file does not state them: {', '.join(self.assumed)}")
        return "\n".join(lines)


def _few(names):
    """Return the first names of a line of a report as text."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The future value of each variable of a model.

    Attributes:
        values: dict from `id(variable)` to a callable that reads its array (or makes its initial value).
        report: the `LoadReport`.
        evidence: `Evidence` of the file.
        head_loaded: whether the head comes from the file.
        warnings: differences to report for a model that already exists.
        table_method: method that resizes the position tables of the file to another grid; None if it has none.
        new_config: config that the model gets, because the user or the file states a resize method; None otherwise.
    """

    values: dict
    report: LoadReport
    evidence: Evidence
    head_loaded: bool
    warnings: tuple
    table_method: str | None
    new_config: ViTConfig | None


class WeightsMismatch(ValueError):
    """The arrays of a file do not match the variables of a model; `problems` has one line per difference."""

    def __init__(self, path, problems):
        super().__init__("\n".join([f"{str(path)!r} does not fit the model:", *map(checks.shortened, problems)]))
        self.path, self.problems = path, problems


def make_plan(model, evidence, resize="auto", head="auto"):
    """Match a file and a model by names and shapes before any array is read; see `load_weights`.

    Raises:
        WeightsMismatch: if an array is missing, unexpected or of another shape, or the file states another
            architecture.
    """
    config, path, owned = model.config, evidence.checkpoint.path, owned_variables(model)
    if resize == "auto" and "embedding.resize" in evidence.stated:  # as if the user had chosen it
        resize = config.field("embedding.resize") or evidence.stated["embedding.resize"]
    assignments = Assignments(evidence.layout, evidence.entries, path, config, resize, evidence.stored_grid)
    tables = (one.layer for one in owned if resize != "auto" and hasattr(one.layer, "resize"))
    chosen = next((assignments.method(layer) for layer in tables), None)
    new_config = None if chosen is None else config.replace(**{"embedding.resize": chosen})
    filled = assignments.of(owned)
    fresh, droppable, notes = _new_head(evidence, config, filled, head)
    loaded = [one for one in filled if one.path not in fresh]
    head_loaded = any(one.path.partition("/")[0] in HEADS for one in loaded)
    is_converted = any(one.resized for one in loaded if one.path in channels.FIRST_KERNELS)  # from RGB
    told, refused = _differences(evidence, new_config or config, head_loaded, is_converted)
    if problems := refused + _problems(loaded, evidence.entries.keys() - droppable):
        raise WeightsMismatch(path, problems)
    values = {id(one.variable): one.read for one in loaded}
    # A new head (kernel and bias) is zero, as in the paper's fine-tuning (section 3.2).
    values |= {id(x.variable): functools.partial(np.zeros, x.variable.shape, "float32") for x in fresh.values()}
    notes = [*map(str, told), *([channels.note_on_images(config.channels)] if is_converted else ()), *notes]
    return Plan(
        values=values,
        report=_report(evidence, config, loaded, fresh, droppable, notes),
        evidence=evidence,
        head_loaded=head_loaded,
        warnings=tuple(f"{path}: {difference}" for difference in told if difference.is_close),
        table_method=assignments.table_method(owned),
        new_config=new_config,
    )


def _new_head(evidence, config, filled, head):
    """Return {path: assignment} of a head that gets initial values, the arrays that may stay unused, and notes."""
    of_head = {one.path: one for one in filled if one.path.partition("/")[0] in HEADS}
    if head != "auto" and not of_head:
        raise ValueError(f"head={head!r} is for a model with a head; {config.name} has include_top=False")
    is_dropped = bool(evidence.pre_logits) and not any(one.path.startswith("pre_logits/") for one in filled)
    is_new = is_dropped or not evidence.head_arrays or _is_of_other_classes(evidence, config, of_head)
    fresh = of_head if head == "reinitialise" or (head == "auto" and is_new) else {}
    droppable = set(evidence.pre_logits) if is_dropped else set()
    if fresh or not of_head:
        droppable |= evidence.head_arrays
    if config.field("head.bias") is False and not evidence.has_head_bias:
        droppable |= {name for name in evidence.head_arrays if name.endswith("bias")}
    return fresh, droppable, ["pre_logits and its head are dropped, as in the paper's fine-tuning"] * is_dropped


def _is_of_other_classes(evidence, config, of_head):
    """Return whether the head of the file is whole, that is as wide as the model, and only has other classes."""
    kernels = (one.variable for path, one in of_head.items() if path == "head/kernel")
    widths = {config.field("hidden_dim"), *(kernel.shape[0] for kernel in kernels)} - {None}
    shapes = evidence.head_shapes
    is_whole = all(any(shape[0] % width == 0 for width in widths) for shape in shapes if len(shape) == 2)
    is_consistent = {shape[-1:] for shape in shapes} == {(evidence.classes,)}
    return is_whole and is_consistent and evidence.classes != config.field("classes")


def _differences(evidence, config, is_loaded, is_converted):
    """Return the differences between what a file states and a config that a report lists, and lines for the others.

    Args:
        evidence: the `Evidence`.
        config: config of the model.
        is_loaded: whether the head is that of the file.
        is_converted: whether the first kernel is converted from RGB.
    """
    different = differences(evidence.stated, config)
    told = [d for d in different if d.is_close or d.about.resized or (d.about.of_head and not is_loaded)]
    told += [d for d in different if d.name == "classifier_activation" or (d.name == "channels" and is_converted)]
    refused = [f"  ! {d}{_NEW_HEAD if d.about.of_head else ''}" for d in different if d not in told]
    if is_converted and evidence.stated.get("channels", channels.RGB) != channels.RGB:
        refused.append(f"  ! the file states channels={evidence.stated['channels']}; its arrays are for RGB")
    return told, refused


def _report(evidence, config, loaded, fresh, droppable, notes):
    """Return the `LoadReport`: every array of the file is used, or unused for a reason."""
    arrays, assumed = evidence.checkpoint.entries, unseen(config.to_dict())
    used = {evidence.entries[name].name for one in loaded for name in one.theirs}
    if evidence.library == "keras":  # sizes of tables
        used |= {name for name in arrays if name.endswith(("/grid", "/window_size"))}
    reasons = {**evidence.unread, **{evidence.entries[name].name: OF_HEAD for name in droppable}}
    unusual = differences(evidence.of_layout, config)
    layout = [f"files of this layout have {name}={theirs!r}; the model has {ours!r}" for name, theirs, ours in unusual]
    known = {*evidence.stated, *evidence.need_not_state, *(name for name in assumed if DECLARED[name].resized)}
    return LoadReport(
        used=tuple(name for name in arrays if name in used),
        resized=tuple(one.resized for one in loaded if one.resized),
        reinitialised=tuple(fresh),
        unused={name: reasons.get(name, _MASKED) for name in arrays if name not in used},
        missing=tuple(path for path, one in fresh.items() if not one.is_in_file),
        source=f"{evidence.checkpoint.path} ({evidence.library} names)",
        notes=(*evidence.notes, *layout, *notes, *_note_on_size(config)),
        assumed=tuple(f"{name}={value!r}" for name, value in assumed.items() if name not in known),
    )


def _note_on_size(config):
    """Return a note, in a tuple, if the patches of a model do not cover its images."""
    covered = config.field("covered_size")
    if not covered or (covered[0] >= config.image_size[0] and covered[1] >= config.image_size[1]):
        return ()
    read, size = (f"{height} x {width}" for height, width in (covered, config.image_size))
    return (f"the patches cover the top left {read} pixels of an image of {size}; the others are not used",)


def plan_equal(model, config, path, layout, entries):
    """Return {id(variable): callable that reads its array} for a Keras model with exactly the arrays of a file.

    Raises:
        WeightsMismatch: if an array is missing, unexpected or of another shape.
    """
    filled = Assignments(layout, entries, path, config).of(owned_variables(model))
    if problems := _problems(filled, entries.keys()):
        raise WeightsMismatch(path, problems)
    return {id(one.variable): one.read for one in filled}


def _problems(filled, needed):
    """Return the problems of assignments that do not use each of the `needed` arrays, and fill each variable, once."""
    problems = [f"  - missing {one.problem}" for one in filled if one.problem and not one.is_in_file]
    problems += [f"  ! {one.problem}" for one in filled if one.problem and one.is_in_file]
    used = {name for one in filled for name in one.theirs}
    problems += [f"  + extra {name}" for name in sorted(needed - used)]
    uses = collections.defaultdict(list)
    for one in filled:
        for name in one.theirs:
            uses[f"{name} is used"].append(one.path)
        uses[f"{one.path} ({id(one.variable):#x}) is filled"].append(one.path)
    repeated = {use: paths for use, paths in uses.items() if len(paths) > 1}
    return problems + [f"  ! {use} {len(paths)} times: {', '.join(paths)}" for use, paths in repeated.items()]
