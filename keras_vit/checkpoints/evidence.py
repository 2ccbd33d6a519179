"""Evidence: a weights file whose layout was recognised, with what its arrays show and what its JSON states."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Set

from keras_vit import checks
from keras_vit.checkpoints import names
from keras_vit.checkpoints.config_json import Stated, read_stated
from keras_vit.checkpoints.entries import Checkpoint
from keras_vit.checkpoints.names.rules import LIBRARIES, Layout, our_shape
from keras_vit.checkpoints.position_table import PositionTable
from keras_vit.checkpoints.shown import shown_fields, window_of
from keras_vit.checkpoints.timm_names import check_parts
from keras_vit.config import ImageConfig
from keras_vit.config.fields import About, fields_of
from keras_vit.models import MODELS

LAYOUT_CHOICES = ("auto", *LIBRARIES, "keras")

# `network` of a config -> what messages call it; files are recognised in this order
_NETWORKS = {
    "vit": "a Vision Transformer",
    "bit": "a BiT ResNet",
    "swin": "a Swin Transformer",
    "axial_resnet": "an AxialResNet",
    None: "a model of this package",
}
_CLASSES = {"VisionTransformer": "vit", "BiTResNet": "bit", "SwinTransformer": "swin", "AxialResNet": "axial_resnet"}
ATTENTIVE = ("map", "aim")  # poolings by attention
_MOST_PREFIXES = 8  # names within names around those of a layout, such as `module.backbone.`
_TEACHER = re.compile(r"(.*\.)?teacher\.(.*\.)?backbone\.")  # of training checkpoints of DINO, iBOT and DINOv2
_GRID = "position_embs/grid"  # in a Keras file: rows and columns of the position table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence(Stated):
    """What a weights file says about its model: what it states, and what its arrays show.

    It has the attributes of `Stated` (`stated`, `stored_grid`, `labels`, `preprocessing`, `notes`, `published`,
    `timm_name`, `timm_file`, `image_size`, `saved_config`, `task`); axes of position tables also show `stored_grid`.

    Attributes:
        checkpoint: the open `Checkpoint`.
        network: `network` of the config of its model, such as `vit`; None for a file from Keras without a config.
        layout: its `Layout`, None for a file from Keras.
        entries: dict from name, in the form that the layout's rules use, to `Entry`; no buffers or optimizer state.
        unread: dict from the names of the other arrays of the file to the reason why they are not read.
        of_layout: dict like `stated`: values of `gelu`, `epsilon` and the style of a stem that files of the layout
            have if they state nothing, as this one. `Layout.fields` are in `shown` instead.
        need_not_state: fields that the file need not state, because the names of its arrays show them, or the layout
            has only one value.
    """

    checkpoint: Checkpoint
    network: str | None
    layout: Layout | None
    entries: dict
    unread: dict = dataclasses.field(default_factory=dict)
    of_layout: dict = dataclasses.field(default_factory=dict)
    need_not_state: tuple = ()

    @property
    def library(self) -> str:
        """Return whose names its arrays have, such as `timm`, or `keras`."""
        return "keras" if self.layout is None else self.layout.library

    @property
    def config_class(self) -> type[ImageConfig]:
        """Return the class of the config of its model.

        Raises:
            ValueError: for a file of Keras that does not state it.
        """
        if self.network is None:
            path = str(self.checkpoint.path)
            raise ValueError(
                f"{path!r} must state its config; it does not: use create_model(variant, weights={path!r})"
            )
        return next(config for config in MODELS if config.network == self.network)

    @functools.cached_property
    def _fields(self):
        """Return the pair of `shown_fields`; files from Keras show their head."""
        if self.layout is not None:
            image_size = self.image_size or (self.preprocessing and self.preprocessing.image_size)
            return shown_fields(self.network, self.layout, self.entries, self.stored_grid, image_size)
        width = next((shape[-1] for shape in self._shapes("pre_logits") if len(shape) == 2), None)
        head = {"include_top": True, "classes": self.classes, "representation_size": width}
        return (head if self.classes else {}), {}

    @property
    def shown(self) -> dict:
        """Return {field: value} that the arrays show; see `shown_fields`."""
        return self._fields[0]

    @property
    def suggested(self) -> dict:
        """Return {field: value} that the arrays suggest; see `shown_fields`."""
        return self._fields[1]

    @property
    def declared(self) -> dict[str, About]:
        """Return the declarations of the fields of its config."""
        return fields_of(self.config_class)

    @property
    def dimensions(self) -> dict:
        """Return {field: what the arrays show, or None} of the widths and depths that every variant has."""
        needed = [name for name, one in self.declared.items() if one.defines and one.required and "." not in name]
        return {name: self.shown.get(name) for name in needed}

    @property
    def shows_vit(self) -> bool:
        """Return whether its arrays show a whole Vision Transformer; otherwise `class_token` stays unknown."""
        return "class_token" in self.shown

    @property
    def is_attentive(self) -> bool:
        """Return whether it has the arrays of a pooling by attention."""
        return self.shown.get("pooling") in ATTENTIVE

    @functools.cached_property
    def position_table(self) -> PositionTable | None:
        """Return its position table, None without one of the width of the model."""
        tables = {} if self.layout is None else self.layout.position_tables
        name = next((name for name in tables if name in self.entries), None)
        shape: tuple = () if name is None else self.entries[name].shape
        if not self.shows_vit or len(shape) < 2 or shape[-1] != self.shown["hidden_dim"]:
            return None
        num_class = int(self.shown["class_token"]) + int(self.shown["distilled"])
        of_file = num_class, self.shown["num_registers"], self.stored_grid
        return PositionTable.of(math.prod(shape) // shape[-1], tables[name], *of_file)

    @property
    def grid(self) -> tuple | None:
        """Return the (rows, columns) of its position table, or of its tables of offsets; None if they are unknown."""
        if self.stored_grid is not None or not self.shows_vit:
            return self.stored_grid
        side = window_of(self.entries, num_others=3)  # those of the class token
        return (self.position_table and self.position_table.grid) or (side and (side, side))

    @functools.cached_property
    def head_arrays(self) -> Set:
        """Return the set of the head arrays, by their names in `entries`."""
        return self._of_layer("head") | self._of_layer("head_dist")

    @functools.cached_property
    def pre_logits(self) -> Set:
        """Return the set of the `pre_logits` arrays, by their names in `entries`."""
        return self._of_layer("pre_logits")

    @property
    def head_shapes(self) -> list:
        """Return the shapes of the head arrays as variables of ours."""
        return [*self._shapes("head"), *self._shapes("head_dist")]

    @property
    def classes(self) -> int | None:
        """Return the number of logits of its head, None without a head."""
        return next((shape[-1] for shape in self._shapes("head") if len(shape) == 2), None)

    def _of_layer(self, layer):
        return names.of_layer(self.layout, layer, self.entries)

    def _shapes(self, layer):
        """Return the shapes that the arrays of a layer have in our models."""
        forms = {name: rule.form for rule in (self.layout.rules if self.layout else ()) for name in rule.theirs}
        return [our_shape(self.entries[name].shape, forms.get(name, "same")) for name in sorted(self._of_layer(layer))]

    @property
    def names_start(self) -> tuple | None:
        """Return the marker of the layout and the start of the array names that it leaves out; None for Keras."""
        if self.layout is None:
            return None
        kernels = [rule.theirs[0] for rule in self.layout.rules if rule.ours == "patch_encoder/projection/kernel"]
        name = next((self.entries[kernel].name for kernel in kernels if kernel in self.entries), "")
        return self.layout.marker, next((name.removesuffix(k) for k in kernels if name.endswith(k)), "")

    @functools.cached_property
    def has_head_bias(self) -> bool:
        """Return whether the head of the file has a bias; timm's CLIPs have one that is zero, which does not count."""
        return any(self.entries[name].read().any() for name in self.head_arrays if name.endswith(("bias", "/1")))


def read_evidence(checkpoint, network=None, library="auto"):
    """Return the `Evidence` of an open `Checkpoint`.

    Names, shapes and JSON files are read, but no array except the biases of keys and the grid of a file from Keras. Of
    a training checkpoint with a student and a teacher, only the backbone of the teacher counts.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        network: `network` of the model's config: `vit`, `bit`, `swin` or `axial_resnet`; None accepts any network.
        library: whose names the arrays have, the argument `layout` of users: `official`, `timm`, `huggingface`,
            `microsoft` (Swin), `original` or `keras`; `auto` recognises them.

    Raises:
        ValueError: if no layout of the network matches the array names, two arrays have the same name in it, the file's
            config is of another network, or a task model has none.
    """
    checks.check_choice("layout", library, LAYOUT_CHOICES)
    check_parts((checkpoint.config_json or {}).get("architecture"))
    of_teacher = {name: entry for name, entry in checkpoint.entries.items() if _TEACHER.match(name)}
    left_out = len(checkpoint.entries) - len(of_teacher) if of_teacher else 0
    checkpoint = dataclasses.replace(checkpoint, entries=of_teacher) if left_out else checkpoint
    checkpoint, wrapper, network, layout = _recognise(checkpoint, network, library)
    entries, unread = names.fold_entries(checkpoint.path, checkpoint.entries, layout)
    in_json = read_stated(checkpoint, network, None if layout is None else layout.library)
    of_layout, need_not_state, grid = {}, (), in_json.stored_grid
    if layout is not None and layout.of_task and in_json.task is None:
        wanted = "so its folder must hold the config.json of transformers for it; it does not"
        raise ValueError(f"{str(checkpoint.path)!r} holds a task model, {wanted}")
    if layout is not None:
        entries = _without_masked(layout, entries, in_json.saved_config)
        grid = _axes_of_tables(layout, checkpoint) or grid
        usual = {"gelu": layout.gelu, "epsilon": layout.epsilon, "stem.style": layout.stem_style}
        # `match` compares what a file states with the model; for fields that it does not state, it compares these.
        of_layout = {name: usual[name] for name in usual if usual[name] is not None and name not in in_json.stated}
        need_not_state = tuple(
            field for field, mark in layout.need_not_state.items() if any(re.search(mark, name) for name in entries)
        )
    elif _GRID in checkpoint.entries:
        grid = _read_grid(checkpoint)
    notes = *in_json.notes, *_notes(layout, unread)
    notes += (f"the prefix {wrapper!r} of its array names is left out",) if wrapper else ()
    notes += (f"only the backbone of the teacher is read, not {left_out} other arrays",) if left_out else ()
    published = in_json.published or tuple(layout.families if layout else ())
    in_json = dataclasses.replace(in_json, stored_grid=grid, notes=notes, published=published)
    return Evidence(
        **vars(in_json),
        checkpoint=checkpoint,
        network=network or (in_json.saved_config and in_json.saved_config.network),
        layout=layout,
        entries=entries,
        unread=unread,
        of_layout=of_layout,
        need_not_state=need_not_state,
    )


def _recognise(checkpoint, network, library):
    """Return the `Checkpoint` without a wrapper, the wrapper, the network and the `Layout`, None for Keras.

    A wrapper is a prefix that most array names share, see `_unwrapped`.

    Args:
        checkpoint: the open `Checkpoint`.
        network: network of the config to search, None for any.
        library: library of the layout, `keras`, or `auto` for any.
    """
    wrapper = ""
    if library == "keras" or (checkpoint.kind == "h5" and library == "auto"):
        found = {_CLASSES.get((checkpoint.config_json or {}).get("class_name"), network): None}
    elif not (found := _found(checkpoint.entries, library)):
        checkpoint, wrapper, found = _unwrapped(checkpoint, library)
    known = {layout.library for layout in names.LAYOUTS.get(network, {}).values()}
    if network is not None and library not in ("auto", "keras", *known):
        choices = ", ".join((*sorted(known), "keras"))
        raise ValueError(f"layout must be one of {choices} for this model; got layout={library!r}")
    for held, layout in found.items():
        if network in (None, held):
            return checkpoint, wrapper, held, layout
    if library not in ("auto", "keras"):  # the arrays decide what is missing
        layout = next(layout for layout in names.LAYOUTS[network].values() if layout.library == library)
        return checkpoint, wrapper, network, layout
    arrays = checks.shortened(", ".join(sorted(checkpoint.entries)[:5])) or "no array at all"
    is_of = f"holds those of {_NETWORKS[next(iter(found))]}" if found else f"holds {arrays} ..."
    known = ", ".join((*sorted(known or LIBRARIES), "keras"))
    raise ValueError(
        f"{str(checkpoint.path)!r} must hold the weights of {_NETWORKS[network]} in a layout among {known}; it {is_of}"
    )


def _found(entries, library):
    """Return {network: its `Layout`} of the layouts of a library, or of all for `auto`, that have these array names."""
    return {other: layout for other in _NETWORKS if (layout := names.detect(entries, other, library)) is not None}


def _unwrapped(checkpoint, library):
    """Return a file without its wrapper, the wrapper, and the layouts.

    A wrapper is a prefix, such as `module.`, that most of its arrays share and that the aliases of no layout drop. A
    head may be outside of it. If no layout has the names without it either, it stays.
    """
    entries, wrapper = checkpoint.entries, ""
    for _ in range(_MOST_PREFIXES if entries else 0):
        starts = collections.Counter(re.match(r"([^./]+[./])?", name)[0] for name in entries)
        start, count = starts.most_common(1)[0]
        entries, wrapper = {name.removeprefix(start): entry for name, entry in entries.items()}, wrapper + start
        if not start or 2 * count < len(entries) or len(entries) < len(checkpoint.entries):
            break
        if found := _found(entries, library):
            renamed = {name: dataclasses.replace(entry, name=name) for name, entry in entries.items()}
            return dataclasses.replace(checkpoint, entries=renamed), wrapper, found
    return checkpoint, "", {}


def _without_masked(layout, entries, saved_config):
    """Return the entries without the biases of keys that are masked, so all zero, unless the file states them."""
    masked = {name for name in entries if layout.masked and re.search(layout.masked, name)}
    has_key_bias = saved_config and saved_config.field("block.key_bias")
    if not masked or has_key_bias or any(entries[name].read().any() for name in masked):
        return entries
    return {name: entry for name, entry in entries.items() if name not in masked}


def _axes_of_tables(layout, checkpoint):
    """Return the (rows, columns) of position tables that have an axis for each, or None."""
    shapes = {names.fold(layout, name): entry.shape for name, entry in checkpoint.entries.items()}
    maps = [shape[-3:-1] for name, shape in shapes.items() if len(shape) > 2 and len(shape) == layout.rank_of(name)]
    sides = {rule.ours: shapes[rule.theirs[0]][-2:-1] for rule in layout.rules if rule.theirs[0] in shapes}
    pair = sides.get("position_embs/rows", ()) + sides.get("position_embs/columns", ())
    return maps[0] if maps else pair if len(pair) == 2 else None


def _read_grid(checkpoint):
    """Return the (rows, columns) of the position table of a file from Keras."""
    entry = checkpoint.entries[_GRID]
    if entry.shape != (2,) or entry.is_floating:
        got = f"{entry.dtype} of shape {entry.shape}"
        raise ValueError(f"{_GRID} of {str(checkpoint.path)!r} must be [rows, columns] as integers; got {got}")
    return tuple(entry.read().tolist())


def _notes(layout, unread):
    """Return notes about the parts of a file that are not read."""
    counts = collections.Counter(part for part in unread.values() if layout and part in layout.aside)
    notes = [f"{part} of the file is not read ({count} arrays)" for part, count in counts.items()]
    if any(name.endswith("bias_mask") for name in unread):
        notes.append("the biases that bias_mask removes are not kept")
    return tuple(notes)
