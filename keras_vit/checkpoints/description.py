"""Description of a weights file: its layout, its arrays, and what it states about its model."""

import collections
import dataclasses
import re
from collections.abc import Set

from keras_vit import checks
from keras_vit.checkpoints import names
from keras_vit.checkpoints.architecture import grid_of, shown_fields, window_of
from keras_vit.checkpoints.config_json import Stated, read_stated
from keras_vit.checkpoints.entries import Checkpoint
from keras_vit.checkpoints.names.rules import LIBRARIES, Layout, our_shape
from keras_vit.config import ViTConfig
from keras_vit.config.unseen import differences
from keras_vit.variants import FAMILIES, VARIANTS

LAYOUT_CHOICES = ("auto", *LIBRARIES, "keras")

_FAMILIES = {
    "vit": "a Vision Transformer",
    "bit": "a BiT ResNet",
    "swin": "a Swin Transformer",
    "axial_resnet": "an AxialResNet",
    None: "a model of this package",
}
_CLASSES = {"VisionTransformer": "vit", "BiTResNet": "bit", "SwinTransformer": "swin", "AxialResNet": "axial_resnet"}
_MOST_PREFIXES = 8  # names within names around those of a layout, such as `module.backbone.`
_GRID = "position_embs/grid"  # in a Keras file: rows and columns of the position table
# Fields that the report lists if the file changes them.
_REPORTED = (
    *("pooling", "norm_position", "position_embedding", "num_registers", "qkv_bias", "qk_norm", "channels"),
    *("classifier_activation", "include_top", "classes"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description(Stated):
    """A weights file that was identified, and what it states.

    Attributes:
        checkpoint: the open `Checkpoint`.
        family: family of the config that its model has, such as `vit`.
        layout: library of the layout, or `keras` for files from Keras.
        names: its `Layout`, None for `keras`.
        entries: dict from name, in the form that the layout's rules use, to `Entry`; no buffers or optimizer state.
        usual: values that the layout implies and the file does not state, such as `gelu`; a dict like `stated`.
        shown: fields that the file need not state, because the names or shapes of its arrays show them.
        heads: set of the head arrays, by their names in `entries`.
        pre_logits: set of the `pre_logits` arrays, by their names in `entries`.
        classes: number of logits of its head, None without a head.
        head_shapes: shapes of the head arrays as variables of ours.
        representation_size: width of its `pre_logits`, None without this layer.
    """

    checkpoint: Checkpoint
    family: str
    layout: str
    names: Layout | None
    entries: dict
    usual: dict = dataclasses.field(default_factory=dict)
    shown: tuple = ()
    heads: Set = frozenset()
    pre_logits: Set = frozenset()
    classes: int | None = None
    head_shapes: tuple = ()
    representation_size: int | None = None

    @property
    def prefix(self):
        """Return the marker of the layout and the start of the array names that it leaves out; None for Keras."""
        if self.names is None:
            return None
        kernels = [rule.theirs[0] for rule in self.names.rules if rule.ours == "patch_encoder/projection/kernel"]
        name = next((self.entries[kernel].name for kernel in kernels if kernel in self.entries), "")
        return self.names.marker, next((name.removesuffix(k) for k in kernels if name.endswith(k)), "")

    def buffers(self, is_flexible):
        """Return the sizes of what every call resizes, as fields: the table, and the kernel of a FlexiViT.

        Args:
            is_flexible: whether it is a FlexiViT; timm resizes its table in its own way.
        """
        fields = shown_fields(self.names, self.entries)
        found = {"position_grid": self.grid_size or grid_of(fields)[0]}
        found |= {"kernel_size": fields["patch_size"]} if is_flexible else {}
        found |= {"resize": self.names.resize} if is_flexible and self.layout == "timm" else {}
        return {f"embedding.{name}": value for name, value in found.items() if value is not None}

    def stated_for(self, include_top, classes):
        """Return `stated`, without the activation of a head that a model with these fields does not load."""
        is_loaded = include_top and classes == self.classes
        return {name: value for name, value in self.stated.items() if is_loaded or name != "classifier_activation"}

    def has_other_head(self, classes, widths):
        """Return whether the file has no head, or a whole head with another number of classes.

        Args:
            classes: number of classes of the model.
            widths: numbers that may divide the number of inputs of a head.
        """
        counts = {shape[-1:] for shape in self.head_shapes}
        kernels = [shape for shape in self.head_shapes if len(shape) == 2]
        is_whole = all(any(rows % width == 0 for width in widths) for rows, _ in kernels)
        return not counts or (is_whole and counts == {(self.classes,)} and self.classes != classes)

    def has_head_bias(self):
        """Return whether the head of the file has a bias; timm's CLIPs have one that is zero, which does not count."""
        return any(self.entries[name].read().any() for name in self.heads if name.endswith(("bias", "/1")))

    def follow(self, config, fixed=(), given=None, known=()):
        """Return the config with the file's values in the fields that the user did not set, and notes about them.

        Args:
            config: config of the model to build.
            fixed: names of the fields that define the architecture; they do not change.
            given: dict of the user's arguments; those that are not None do not change.
            known: names of the fields whose value is known of the model; the file changes them only if it states them.

        Raises:
            ValueError: if the layout belongs to other families than the variant; they resize positions in another way.
        """
        families = () if self.names is None else self.names.published
        if families and config.name in VARIANTS and VARIANTS[config.name].family not in families:
            titles = " or ".join(FAMILIES[name].title for name in families)
            raise ValueError(f"{str(self.checkpoint.path)!r} holds the weights of {titles}, not of {config.name}")
        usual, given = {name: value for name, value in self.usual.items() if name not in known}, given or {}
        original = config
        if self.classes is not None and given.get("classes") is None and given.get("include_top") is None:
            config = config.replace(include_top=True, classes=self.classes)
        changes = {
            name: value
            for name, value in {**usual, **self.stated_for(config.include_top, config.classes)}.items()
            if "." not in name and hasattr(config, name) and name not in fixed and given.get(name) is None
        }
        if isinstance(config, ViTConfig):
            # A head trained after pre_logits needs that layer. A new head has none, as in the paper's fine-tuning.
            if config.representation_size is None and config.include_top and config.classes == self.classes:
                changes["representation_size"] = self.representation_size
            if config.embedding.position_grid and self.names is not None:
                buffers = self.buffers(config.embedding.kernel_size is not None)
                changes |= {name: value for name, value in buffers.items() if name not in given}
            if "embedding.resize" in self.stated and not (given.keys() & {"embedding", "embedding.resize"}):
                changes["embedding.resize"] = self.stated["embedding.resize"]
            if config.stem is not None:
                stated = {**self.usual, **self.stated}.items()
                changes |= {name: value for name, value in stated if name.startswith("stem.")}
            if config.include_top and self.heads and "head.bias" not in given and self.classes == config.classes:
                changes["head.bias"] = config.head.bias or self.has_head_bias()
        followed = config.replace(**changes)
        found = differences({name: getattr(followed, name) for name in _REPORTED if hasattr(followed, name)}, original)
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
    prefix = ""
    if layout == "keras" or (checkpoint.kind == "h5" and layout == "auto"):
        found = {_CLASSES.get((checkpoint.config or {}).get("class_name"), family): None}
    elif not (found := _found(checkpoint.entries, layout)):
        checkpoint, prefix, found = _unwrapped(checkpoint, layout)
    family, rules = _recognise(checkpoint, family, layout, found)
    layout = "keras" if rules is None else rules.library
    entries = names.fold_entries(checkpoint.path, checkpoint.entries, rules)
    stated = vars(read_stated(checkpoint, family, layout))
    if rules is not None and rules.masked and not (stated["model"] and stated["model"].block.key_bias):
        masked = {name for name in entries if re.search(rules.masked, name)}
        if not any(entries[name].read().any() for name in masked):
            entries = {name: entry for name, entry in entries.items() if name not in masked}
    stated["notes"] += _set_aside(rules, checkpoint)
    stated["notes"] += (f"the prefix {prefix!r} of its array names is left out",) if prefix else ()
    parts = {layer: names.of_layer(rules, layer, entries) for layer in ("head", "head_dist", "pre_logits")}
    shapes = {layer: _shapes(rules, of_layer, entries) for layer, of_layer in parts.items()}
    usual, shown = {}, ()
    if rules is not None:
        stated["grid_size"] = _axes_of_tables(rules, checkpoint) or stated["grid_size"]
        stated["published"] = stated["published"] or tuple(rules.published)
        usual = {"gelu": rules.gelu, "epsilon": rules.epsilon, "stem.style": rules.stem_style}
        usual |= {"window_size": window_of(entries)} if family == "swin" else {}
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
        family=family,
        layout=layout,
        names=rules,
        entries=entries,
        usual={name: value for name, value in usual.items() if value is not None and name not in stated["stated"]},
        shown=shown,
        heads=parts["head"] | parts["head_dist"],
        pre_logits=parts["pre_logits"],
        classes=_width(shapes["head"]),
        head_shapes=(*shapes["head"], *shapes["head_dist"]),
        representation_size=_width(shapes["pre_logits"]),
    )


def _found(entries, library):
    """Return {family: its `Layout`} of the layouts of a library, or of all for `auto`, that have these array names."""
    return {other: layout for other in _FAMILIES if (layout := names.detect(entries, other, library)) is not None}


def _unwrapped(checkpoint, library):
    """Return a file without the prefix, such as `module.`, that most of its arrays share, the prefix, and the layouts.

    A head may be outside of it. If no layout has the names without the prefix either, it stays.
    """
    entries, prefix = checkpoint.entries, ""
    for _ in range(_MOST_PREFIXES if entries else 0):
        starts = collections.Counter(re.match(r"([^./]+[./])?", name)[0] for name in entries)
        start, count = starts.most_common(1)[0]
        entries, prefix = {name.removeprefix(start): entry for name, entry in entries.items()}, prefix + start
        if not start or 2 * count < len(entries) or len(entries) < len(checkpoint.entries):
            break
        if found := _found(entries, library):
            renamed = {name: dataclasses.replace(entry, name=name) for name, entry in entries.items()}
            return dataclasses.replace(checkpoint, entries=renamed), prefix, found
    return checkpoint, "", {}


def _axes_of_tables(rules, checkpoint):
    """Return the (rows, columns) of position tables that have an axis for each, or None."""
    shapes = {names.fold(rules, name): entry.shape for name, entry in checkpoint.entries.items()}
    maps = [shape[-3:-1] for name, shape in shapes.items() if len(shape) > 2 and len(shape) == rules.rank_of(name)]
    sides = {rule.ours: shapes[rule.theirs[0]][-2:-1] for rule in rules.rules if rule.theirs[0] in shapes}
    pair = sides.get("position_embs/rows", ()) + sides.get("position_embs/columns", ())
    return maps[0] if maps else pair if len(pair) == 2 else None


def _set_aside(rules, checkpoint):
    """Return notes about the parts of a file that are not read."""
    counts = {}
    for part, pattern in rules.aside.items() if rules else ():
        counts[part] = sum(1 for name in checkpoint.entries if re.search(pattern, names.fold(rules, name)))
    notes = [f"{part} of the file is not read ({count} arrays)" for part, count in counts.items() if count]
    if any(name.endswith("bias_mask") for name in checkpoint.entries):
        notes.append("the biases that bias_mask removes are not kept")
    return tuple(notes)


def _shapes(rules, of_layer, entries):
    """Return the shapes that the arrays of a layer have in our models."""
    forms = {} if rules is None else {name: rule.form for rule in rules.rules for name in rule.theirs}
    return [our_shape(entries[name].shape, forms.get(name, "same")) for name in sorted(of_layer)]


def _width(shapes):
    """Return the width of the output of a dense layer whose arrays have these shapes, or None without one."""
    return next((shape[-1] for shape in shapes if len(shape) == 2), None)


def _recognise(checkpoint, family, library, found):
    """Return (family, its `Layout`, None for Keras) of a file.

    Args:
        checkpoint: the open `Checkpoint`.
        family: family of the config to search, None for any.
        library: library of the layout, `keras`, or `auto` for any.
        found: see `_found`.
    """
    known = {layout.library for layout in names.LAYOUTS.get(family, {}).values()}
    if family is not None and library not in ("auto", "keras", *known):
        choices = ", ".join((*sorted(known), "keras"))
        raise ValueError(f"layout must be one of {choices} for this model; got layout={library!r}")
    for held, layout in found.items():
        if family in (None, held):
            return held, layout
    if library not in ("auto", "keras"):  # the arrays decide what is missing
        return family, next(layout for layout in names.LAYOUTS[family].values() if layout.library == library)
    arrays = checks.shortened(", ".join(sorted(checkpoint.entries)[:5])) or "no array at all"
    is_of = f"holds those of {_FAMILIES[next(iter(found))]}" if found else f"holds {arrays} ..."
    known = ", ".join((*sorted(known or LIBRARIES), "keras"))
    raise ValueError(
        f"{str(checkpoint.path)!r} must hold the weights of {_FAMILIES[family]} in a layout among {known}; it {is_of}"
    )
