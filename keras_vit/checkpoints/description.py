"""Description of a weights file: its layout, its arrays, and what it states about its model."""

import dataclasses
import re

from keras_vit import checks
from keras_vit.checkpoints import names
from keras_vit.checkpoints.config_json import Stated, read_stated
from keras_vit.checkpoints.entries import Checkpoint
from keras_vit.checkpoints.names.rules import LAYOUT_NAMES, Layout
from keras_vit.config import ViTConfig
from keras_vit.config.unseen import differences
from keras_vit.layers.position_grid import square_grid

LAYOUT_CHOICES = ("auto", *LAYOUT_NAMES, "keras")

_FAMILIES = {
    "vit": "a Vision Transformer",
    "bit": "a BiT ResNet",
    "swin": "a Swin Transformer",
    "axial_resnet": "an AxialResNet",
    None: "a model of this package",
}
_CLASSES = {"VisionTransformer": "vit", "BiTResNet": "bit", "SwinTransformer": "swin", "AxialResNet": "axial_resnet"}
_GRID = "position_embs/grid"  # in a Keras file: rows and columns of the position table
# Fields that the report lists if the file changes them.
_REPORTED = ("pooling", "norm_position", "position_embedding", "num_registers", "qkv_bias", "qk_norm", "channels")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description(Stated):
    """A weights file that was identified, and what it states.

    Attributes:
        checkpoint: the open `Checkpoint`.
        layout: name of the layout, or `keras` for files from Keras.
        names: its `Layout`, None for `keras`.
        entries: dict from name, in the form that the layout's rules use, to `Entry`; no buffers or optimizer state.
        usual: values that the layout implies and the file does not state, such as `gelu`; a dict like `stated`.
        shown: fields that the file need not state, because the names or shapes of its arrays show them.
        heads: set of the head arrays, by their names in `entries`.
        pre_logits: set of the `pre_logits` arrays, by their names in `entries`.
        classes: number of logits of its head, None without a head.
        representation_size: width of its `pre_logits`, None without this layer.
    """

    checkpoint: Checkpoint
    layout: str
    names: Layout | None
    entries: dict
    usual: dict
    shown: tuple
    heads: set
    pre_logits: set
    classes: int | None
    representation_size: int | None

    def follow(self, config, fixed=(), given=None):
        """Return the config with the file's values in the fields that the user did not set, and notes about them.

        Args:
            config: config of the model to build.
            fixed: names of the fields that define the architecture; they do not change.
            given: dict of the user's arguments; those that are not None do not change.
        """
        known, given = {**self.usual, **self.stated}, given or {}
        changes = {
            name: value
            for name, value in known.items()
            if hasattr(config, name) and name not in fixed and given.get(name) is None
        }
        if isinstance(config, ViTConfig):
            # A head trained after pre_logits needs that layer. A new head has none, as in the paper's fine-tuning.
            if config.representation_size is None and config.include_top and config.classes == self.classes:
                changes["representation_size"] = self.representation_size
            if config.stem is not None:
                stem = {name.removeprefix("stem."): known[name] for name in known if name.startswith("stem.")}
                changes["stem"] = config.stem.replace(**stem)
        followed = config.replace(**changes)
        found = differences({name: getattr(followed, name) for name in _REPORTED if hasattr(followed, name)}, config)
        listed = ", ".join(f"{name}={theirs!r}" for name, theirs, _ in found)
        return followed, (f"built with {listed}, as the file states",) if found else ()


def describe(checkpoint, family=None, layout="auto"):
    """Return the `Description` of an open `Checkpoint`.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        family: `family` of the model's config: `vit`, `bit`, `swin` or `axial_resnet`; None accepts any family.
        layout: `auto` recognises it by the array names; or one of `official`, `timm`, `huggingface`, `microsoft`
            (Swin), `keras`.

    Raises:
        ValueError: if no layout of the family matches the array names, two arrays have the same name in it, or the
            file's config is of another family.
    """
    checks.check_choice("layout", layout, LAYOUT_CHOICES)
    if layout == "auto":
        family, layout = _recognise(checkpoint, family)
    layouts = names.LAYOUTS.get(family, {})
    if layout not in (*layouts, "keras"):
        known = ", ".join((*layouts, "keras"))
        raise ValueError(f"layout must be one of {known} for this model; got layout={layout!r}")
    rules, stated = layouts.get(layout), vars(read_stated(checkpoint, family, layout))
    entries = names.fold_entries(checkpoint.path, checkpoint.entries, rules)
    parts, widths = {}, {}
    for layer in ("head", "head_dist", "pre_logits"):
        parts[layer] = names.of_layer(rules, layer, entries)
        biases = (entries[name] for name in parts[layer] if name.endswith(("bias", "/1")))
        widths[layer] = next((entry.shape[0] for entry in biases if entry.shape), None)
    usual, shown = {}, ()
    if rules is not None:
        usual = {"gelu": rules.gelu, "epsilon": rules.epsilon, "stem.style": rules.stem_style}
        usual |= {"window_size": _window_of(entries)} if family == "swin" else {}
        shown = tuple(field for field, mark in rules.shows.items() if any(re.search(mark, name) for name in entries))
    elif _GRID in checkpoint.entries:
        entry = checkpoint.entries[_GRID]
        if entry.shape != (2,) or entry.is_floating:
            got = f"{entry.dtype} of shape {entry.shape}"
            raise ValueError(f"{_GRID} of {str(checkpoint.path)!r} must be [rows, columns] as integers; got {got}")
        stated["grid_size"] = tuple(entry.read().tolist())
    return Description(
        **stated,
        checkpoint=checkpoint,
        layout=layout,
        names=rules,
        entries=entries,
        usual={name: value for name, value in usual.items() if value is not None and name not in stated["stated"]},
        shown=shown,
        heads=parts["head"] | parts["head_dist"],
        pre_logits=parts["pre_logits"],
        classes=widths["head"],
        representation_size=widths["pre_logits"],
    )


def _recognise(checkpoint, family):
    """Return (family, name of the layout) of a file; `family` restricts the search unless it is None."""
    if checkpoint.kind == "h5":
        found = {_CLASSES.get((checkpoint.config or {}).get("class_name"), family): "keras"}
    else:
        found = {other: names.detect(checkpoint.entries, other) for other in names.LAYOUTS}
        found = {other: layout for other, layout in found.items() if layout is not None}
    for held, layout in found.items():
        if family in (None, held):
            return held, layout
    arrays = ", ".join(sorted(checkpoint.entries)[:5]) or "no array at all"
    is_of = f"holds those of {_FAMILIES[next(iter(found))]}" if found else f"holds {arrays} ..."
    known = ", ".join((*names.LAYOUTS.get(family, LAYOUT_NAMES), "keras"))
    raise ValueError(
        f"{str(checkpoint.path)!r} must hold the weights of {_FAMILIES[family]} in a layout among {known}; it {is_of}"
    )


def _window_of(entries):
    """Return the window of the largest bias table; the tables of small maps have smaller windows."""
    tables = [entry.shape for name, entry in entries.items() if name.endswith("_position_bias_table")]
    offsets = square_grid(max((shape[0] for shape in tables if len(shape) == 2), default=0))
    return (offsets[0] + 1) // 2 if offsets else None
