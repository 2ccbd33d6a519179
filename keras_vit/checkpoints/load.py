"""load_weights: strict loading of a file into a built model, with a report about both."""

import dataclasses
import warnings

import numpy as np

from keras_vit import checks
from keras_vit.checkpoints import position_tables
from keras_vit.checkpoints.description import Description, describe
from keras_vit.checkpoints.folding import is_size
from keras_vit.checkpoints.locate import locate
from keras_vit.checkpoints.read_ahead import check_all, read_ahead
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.sources import File
from keras_vit.config.unseen import OF_THE_HEAD, RESIZED, differences, unseen
from keras_vit.logs import LOGGER
from keras_vit.models.base import ImageModel
from keras_vit.typing import PathLike

_HEADS = ("head", "head_dist")  # a distilled model has both
_NEW_HEAD = " (head='reinitialise' loads the rest)"
_SEVERAL_PROTOCOLS = ("timm", "huggingface")  # their weights were trained with different mean and std
HEAD_CHOICES = ("auto", "load", "reinitialise")


class WeightsMismatch(ValueError):
    """The arrays of a file do not match the variables of a model; `problems` has one line per difference."""

    def __init__(self, path, problems):
        super().__init__("\n".join([f"{str(path)!r} does not fit the model:", *problems]))
        self.path, self.problems = path, problems


def load_weights(
    model: ImageModel, source: PathLike, *, layout: str = "auto", resize: str = "auto", head: str = "auto"
) -> LoadReport:
    """Load weights strictly: file and model must have the same variables.

    Only three things may differ: the image size (position embeddings are resized), the head (see `head`), and
    `pre_logits`, which fine-tuning drops together with its head. All arrays are checked before the first is loaded, so
    the model does not change if an error is raised. Only a few arrays are in memory at a time.

    A model whose preprocessing was not set explicitly takes the file's, if stated, together with the head. What the
    arrays do not show, such as the number of heads, is compared with config.json and the metadata of the file; the
    report lists as assumed what these do not state.

    Args:
        model: a model of this package.
        source: path of an `.npz`, `.safetensors`, `.weights.h5` or `.keras` file or of a folder with `config.json` and
            `model.safetensors`; name of a release; or `hf://org/repo`. See `create_model`.
        layout: naming scheme of the arrays: `auto`, `official` (vit_jax, big_vision, BiT), `timm`, `huggingface`,
            `microsoft` (Swin) or `keras`.
        resize: resize method of position embeddings, see `resize_position_embedding`; `auto` uses that of the file's
            family.
        head: `auto` loads the head if the numbers of classes match and reinitialises it otherwise; `load` requires it
            to match; `reinitialise` sets it to zero.

    Returns:
        A `LoadReport`, which is also logged to `keras_vit` at level INFO.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if an array is missing, unexpected, damaged, of another shape or of integers, or the file states
            another architecture; the message lists all differences.

    Warns:
        UserWarning: if the file states another GELU or epsilon than the model has.
    """
    path, _ = locate(source, model.config.name, model.config.image_size)
    checkpoint = open_checkpoint(path)
    plan = make_plan(model, checkpoint, layout=layout, resize=resize, head=head)
    check_all(checkpoint.entries[name] for name in plan.report.used)
    values = read_ahead(plan.values, [id(variable) for variable in model.weights])
    for variable in model.weights:
        variable.assign(values[id(variable)]())  # copied into the existing memory, which TensorFlow keeps
    plan.note_on(model)
    for text in plan.warnings:
        warnings.warn(text, stacklevel=2)
    LOGGER.info(plan.report)
    return plan.report


@dataclasses.dataclass(frozen=True)
class Plan:
    """The future value of each variable of a model.

    Attributes:
        values: dict from `id(variable)` to a callable that reads its array (or makes its initial value).
        report: the `LoadReport`.
        description: `Description` of the file.
        head_loaded: whether the head comes from the file.
        file: name of the file and of its layout.
        warnings: differences to report for a model that already exists.
    """

    values: dict
    report: LoadReport
    description: Description
    head_loaded: bool
    file: str
    warnings: tuple

    def note_on(self, model):
        """Record the source of the weights on the model, and the file's preprocessing if the model has none."""
        model.weights_source = self.file
        if not self.head_loaded or model.preprocessing_source != "default":
            return
        stated = self.description.preprocessing
        if stated is not None and stated.channels == model.preprocessing.channels:
            model.preprocessing = stated.at(model.config.image_size)
        elif self.description.layout in _SEVERAL_PROTOCOLS:
            model.assume_preprocessing()


def make_plan(model, checkpoint, *, layout="auto", resize="auto", head="auto"):
    """Match a file and a model by names and shapes before any array is read; see `load_weights`."""
    checks.check_choice("head", head, HEAD_CHOICES)
    position_tables.check_method(resize)
    description = describe(checkpoint, model.config.family, layout)
    file = File(checkpoint, description, model)
    sources = file.sources(resize)
    if head != "auto" and not _has(sources, "head"):
        raise ValueError(f"head={head!r} is for a model with a head; {model.config.name} has include_top=False")
    fresh = _fresh_head(file, sources, head)
    head_loaded = not fresh and _has(sources, "head")
    refused, doubtful = _compare(description, model.config, head_loaded)
    loaded = [source for source in sources if source.path not in fresh]
    used = {name for source in loaded for name in source.theirs}
    droppable = file.part(*_HEADS) if fresh or not _has(sources, "head") else set()
    if not _has(sources, "pre_logits"):
        droppable = droppable | file.part("pre_logits")
    _check_strict(checkpoint, refused, loaded, sorted(set(file.entries) - used - droppable))
    originals = {file.entries[name].name for name in used}
    if description.layout == "keras":
        originals |= {name for name in checkpoint.entries if is_size(name)}
    report = LoadReport(
        used=tuple(name for name in checkpoint.entries if name in originals),
        resized=tuple(source.resized for source in loaded if source.resized),
        reinitialised=tuple(source.path for source in sources if source.path in fresh),
        unused=tuple(name for name in checkpoint.entries if name not in originals),
        missing=tuple(source.path for source in sources if source.path in fresh and not source.is_in_file),
        source=f"{checkpoint.path} ({description.layout} names)",
        notes=_notes(model.config, description, file, sources, doubtful),
        assumed=_assumed(model.config, description),
    )
    values = {
        id(source.variable): _initial(source.variable) if source.path in fresh else source.read for source in sources
    }
    close = tuple(f"{checkpoint.path}: {difference}" for difference in doubtful if difference.is_close)
    return Plan(values, report, description, head_loaded, f"{checkpoint.path.name} ({description.layout} names)", close)


def _fresh_head(file, sources, head):
    """Return the paths of the heads' variables if they are to be reinitialised, otherwise an empty set."""
    of_head = [source for source in sources if source.path.partition("/")[0] in _HEADS]
    drops_pre_logits = bool(file.part("pre_logits")) and not _has(sources, "pre_logits")
    does_not_fit = any(source.problem for source in of_head)
    if head == "reinitialise" or (head == "auto" and (does_not_fit or drops_pre_logits)):
        return {source.path for source in of_head}
    return set()


def _has(sources, layer):
    return any(source.path.startswith(f"{layer}/") for source in sources)


def _compare(description, config, head_loaded):
    """Return (differences that prevent loading, differences to report) between a file's statements and a config."""
    found = differences(description.stated, config)
    told = [d for d in found if d.is_close or d.name in RESIZED or (d.name in OF_THE_HEAD and not head_loaded)]
    return [difference for difference in found if difference not in told], told


def _check_strict(checkpoint, refused, loaded, extra):
    problems = [source for source in loaded if source.problem]
    if not problems and not extra and not refused:
        return
    lines = [f"  ! {difference}{_NEW_HEAD if difference.name in OF_THE_HEAD else ''}" for difference in refused]
    lines += [f"  - missing {source.problem}" for source in problems if not source.is_in_file]
    lines += [f"  ! {source.problem}" for source in problems if source.is_in_file]
    lines += [f"  + extra {name}" for name in extra]
    raise WeightsMismatch(checkpoint.path, lines)


def _notes(config, description, file, sources, doubtful):
    notes = [*description.notes, *map(str, doubtful)]
    for name, theirs, ours in differences(description.usual, config):
        notes.append(f"files of this layout have {name}={theirs!r}; the model has {ours!r}")
    if file.part("pre_logits") and not _has(sources, "pre_logits"):
        notes.append("pre_logits and its head are dropped, as in the paper's fine-tuning")
    return tuple(notes)


def _assumed(config, description):
    """Return the fields that neither the file's statements nor its arrays show; they keep the model's value."""
    return tuple(
        f"{name}={value!r}"
        for name, value in unseen(config.to_dict()).items()
        if name not in description.stated and name not in description.shown
    )


def _initial(variable):
    """Return zeros for a new head (kernel and bias), as in the paper's fine-tuning (section 3.2)."""
    return lambda: np.zeros(variable.shape, "float32")
