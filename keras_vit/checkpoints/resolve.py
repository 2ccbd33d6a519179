"""resolve: the evidence of a file, the table of variants and the user's arguments -> the config of the model to build.

Every field has the value of the first of these sources that knows it: the arguments; what defines the variant, if the
user names it; the arrays, with what the layout of the file fixes (`Layout.fields`); the JSON that the file states; what
the arrays suggest; the variant or family that the file belongs to; the values that files of the layout usually have;
the defaults. Then the fields of a ViT that depend on each other are settled. `match` later refuses a file whose JSON
contradicts its arrays.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit import checks
from keras_vit.checkpoints.evidence import ATTENTIVE, Evidence
from keras_vit.checkpoints.fitting import find_row
from keras_vit.checkpoints.releases.release import Release, label_set
from keras_vit.config import ImageConfig, Preprocessing, ResNetConfig
from keras_vit.config.base import Config, count_patches, flattened, with_field
from keras_vit.config.fields import names_of
from keras_vit.config.preprocessing import suited
from keras_vit.config.resnet import stride_of
from keras_vit.config.unseen import Difference, differences
from keras_vit.config.vit import CLASS_TOKEN_POOLINGS
from keras_vit.variants import FAMILIES, VARIANTS, Family, Variant

_ARGUMENTS, _ARRAYS, _FILE = "the arguments", "the arrays", "the file"  # sources, as a report names them
_INITIAL_LAYER_SCALE = 1e-5  # if the file has LayerScale, whose values replace it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
    """The model that a file holds.

    Attributes:
        config: its config.
        row: the `Variant` or `Family` that the file belongs to, or None.
        sources: dict from fields of the config to where their values are from.
        preprocessing: `Preprocessing` of its images, None if no source knows it.
        labels: class names of the head of the file, None without a head.
        assumption: note that the labels are assumed, or None.
        notes: tuple of strings for the report.
    """

    config: ImageConfig
    row: Variant | Family | None
    sources: Mapping[str, str]
    preprocessing: Preprocessing | None
    labels: tuple | None
    assumption: str | None
    notes: tuple[str, ...]


def resolve(
    evidence: Evidence, variant: str | None, arguments: Mapping[str, Any], release: Release | None = None
) -> Resolved:
    """Return what a file holds.

    Args:
        evidence: see `read_evidence`.
        variant: name of the variant or of the family that the file must be of; None finds it.
        arguments: fields that the user sets, with dots for those of nested configs; None leaves a field open, but is a
            value of a nested one.
        release: the `Release` that the file is, or None.

    Raises:
        ValueError: if the file does not hold the variant, several variants or families fit that give other outputs, no
            source knows a field, or the model has no such field; the message names the argument to pass.
    """
    given = {name: value for name, value in arguments.items() if value is not None or "." in name}
    if evidence.saved_config is not None and variant in (None, evidence.saved_config.name):
        config, sources = _saved(evidence, variant, given)
        row: Variant | Family | None = VARIANTS.get(config.name) or FAMILIES.get(config.name)
        notes: tuple = ("the config is that of the model that was saved",)
    else:
        stated = _stated(evidence, given)
        row, notes = find_row(evidence, variant, given, {**stated, **given})
        values, sources = _merged(evidence, row, variant, given, stated)
        if evidence.shows_vit:
            _settle(evidence, row, values, sources)
        config = _config(evidence, row, values, sources, given)
    if isinstance(row, Variant):
        notes = (*notes, *_changes(row, config, given))
    usual = None if row is None else row.preprocessing
    preprocessing = suited(config, (release or evidence).preprocessing, usual)
    labels, assumption = _labels(config, evidence, release)
    about = {"preprocessing": preprocessing, "labels": labels, "assumption": assumption, "notes": notes}
    return Resolved(config=config, row=row, sources=sources, **about)


def _stated(evidence, given):
    """Return the fields that a file states, without the activation of a head that the model does not load."""
    is_loaded = given.get("include_top", True) and given.get("classes", evidence.classes) == evidence.classes
    stated = {name: value for name, value in evidence.stated.items() if value is not None or "." in name}
    return {name: value for name, value in stated.items() if is_loaded or name != "classifier_activation"}


def _merged(evidence, row, variant, given, stated):
    """Return {field: value} and {field: source}: each value is from the first source that knows it."""
    title = "" if row is None else row.name if isinstance(row, Variant) else row.title
    by_source = {
        _ARGUMENTS: given,
        f"the variant {title}": row.defining if variant in VARIANTS else {},
        _ARRAYS: evidence.shown,
        _FILE: stated,
        "the arrays, probably": evidence.suggested,
        f"the table ({title})": {"name": "vit"} if row is None else row.fields,
        f"the layout ({evidence.library})": {**evidence.of_layout, "layer_scale_init": _INITIAL_LAYER_SCALE},
        "the defaults": {name: one.default for name, one in evidence.declared.items() if "." not in name},
    }
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, fields in by_source.items():
        for name, value in fields.items():
            if name in evidence.declared and name not in values and (value is not None or source != "the defaults"):
                values[name], sources[name] = value, source
    return values, sources


def _changes(row, config, given):
    """Return a note, in a tuple, on the fields whose value of a file differs from that of its variant."""
    names = [name for name in names_of(row.config_class, changeable=True) if name not in given and name in row.fields]
    listed = ", ".join(f"{name}={config.field(name)!r}" for name in names if config.field(name) != row.fields[name])
    return (f"built with {listed}, as the file states",) if listed else ()


def _settle(evidence, row, values, sources):
    """Settle the fields of a ViT that depend on each other, unless the user sets them."""
    shown, of_row = evidence.shown, row.fields if row else {}
    settled = {}
    # A table that the model resizes in every call has the grid of the file, and a FlexiViT the kernel of the file.
    is_flexible = of_row.get("embedding.kernel_size") is not None
    if is_flexible or values.get("embedding.position_grid") or values.get("embedding.square_positions"):
        settled["embedding.position_grid"] = evidence.grid
    if is_flexible:
        settled |= {
            "embedding.kernel_size": shown["patch_size"],
            "patch_size": of_row.get("patch_size", values["patch_size"]),
        }
        settled |= {"embedding.resize": evidence.layout.resize} if evidence.library == "timm" else {}
    settled["pooling"] = pooling = _pooling(shown, of_row, values, sources["pooling"])
    # A config need not state what follows from the pooling.
    settled["class_token"] = None if shown["class_token"] == (pooling in CLASS_TOKEN_POOLINGS) else shown["class_token"]
    settled["head.num_blocks"] = values.get("head.num_blocks", 1) if pooling == "token_gap" else 1
    is_other_mlp = pooling == "map" and values.get("head.map_mlp_dim") != values["mlp_dim"]
    settled["head.map_mlp_dim"] = values.get("head.map_mlp_dim") if is_other_mlp else None
    # A head that was trained after pre_logits needs that layer; a new head has none, as in the paper's fine-tuning.
    num_logits = values["include_top"] and values["classes"]  # False without a head
    if num_logits != (shown["include_top"] and evidence.classes):
        settled["representation_size"] = None
    if shown.get("head.bias") and not of_row.get("head.bias", True):
        settled["head.bias"] = evidence.has_head_bias
    if values["block.gated"] and pooling != "map" and "gelu" not in values:
        settled["gelu"] = "erf"  # SwiGLU has no GELU
    for name, value in settled.items():
        if sources.get(name) != _ARGUMENTS and (name not in values or values[name] != value):
            values[name], sources[name] = value, _ARRAYS


def _pooling(shown, of_row, values, source):
    """Return the pooling: the user's, or one that the arrays allow."""
    pooling = values["pooling"]
    if source == _ARGUMENTS:
        return pooling
    # That of the table is the pooling of models with its norm.
    has_its_norm = values["norm_position"] == of_row.get("norm_position", "before_pooling")
    if source.startswith("the table") and not has_its_norm:
        pooling = "token"
    if pooling in ATTENTIVE and "pooling" not in shown:  # it has arrays
        pooling = "token"
    return "gap" if pooling in CLASS_TOKEN_POOLINGS and not shown["class_token"] else pooling


def _config(evidence, row, values, sources, given):
    """Return the config with these values, at the image size of the file unless the user gives another one."""
    path = repr(str(evidence.checkpoint.path))
    for name in (*evidence.dimensions, "window_size", "width_factor", "gelu", "epsilon"):
        if name in evidence.declared and name not in values:
            sizes = ", ".join(f"{size}={shown}" for size, shown in evidence.dimensions.items())
            raise ValueError(f"the names and shapes of {path} do not show {name}: pass {name}=... (it has {sizes})")
    if "image_size" not in values:
        values["image_size"], sources["image_size"] = _image_size(evidence, row, values)
        steps = checks.check_pair("patch_size", values.get("patch_size", 1))
        sides = checks.check_pair("image_size", values["image_size"])
        if any(side % step for side, step in zip(sides, steps, strict=True)):
            values["embedding.whole_patches"] = given.get("embedding.whole_patches", False)
    config = evidence.config_class.from_dict(_nested(values, evidence.declared, given))
    positions = evidence.position_table if values.get("position_embedding") == "learned" else None
    if positions is not None and "embedding.class_position" not in given:
        has_class_rows = positions.has_class_rows(config.table_grid)
        config = config.replace(**{"embedding.class_position": has_class_rows})
        sources["embedding.class_position"] = _ARRAYS
    for name in sorted(given.keys() - flattened(config.to_dict())):
        raise ValueError(f"{name} must be left out: the model in {path} has no such part; got {name}={given[name]!r}")
    return config


def _nested(values, declared, given):
    """Return the dict of a config for names with dots, without what the config does not have."""
    present = {
        # the user removes a part by None
        "block.rotary": values.get("block.rotary.kind") is not None and given.get("block.rotary", "unset") is not None,
        "window": any(name.startswith("window.") and value is not None for name, value in values.items()),
        "stem": values.get("stem.stage_sizes") is not None,
    }
    absent = tuple(f"{part}." for part, is_present in present.items() if not is_present)
    nested: dict[str, Any] = {"stem": {"class_name": ResNetConfig.__name__}} if present["stem"] else {}
    for name, value in values.items():
        # The defaults of parts are configs, whose fields are also here by name.
        if name in declared and not name.startswith(absent) and not isinstance(value, Config):
            nested = with_field(nested, name, value)
    return nested


def _image_size(evidence, row, values):
    """Return the (height, width) that the file states or its table shows, or that its variant has, and its source."""
    preprocessing = evidence.preprocessing
    if isinstance(row, Variant) and values.get("embedding.kernel_size") is not None:
        return row.image_size, f"the table ({row.name})"
    if (grid := evidence.grid) is not None:
        patch_size = checks.check_pair("patch_size", evidence.shown.get("patch_size") or values["patch_size"])
        stride, pad = stride_of(values.get("stem.stage_sizes")), values.get("embedding.pad")
        for size in (preprocessing and preprocessing.image_size, evidence.image_size):
            if size and count_patches([-(-side // stride) for side in size], patch_size, pad) == tuple(grid):
                return size, _FILE
        return tuple(side * step * stride for side, step in zip(grid, patch_size, strict=True)), _ARRAYS
    if evidence.position_table is None and preprocessing is not None:
        return preprocessing.image_size, "the preprocessing of the file"
    if evidence.position_table is not None or not isinstance(row, Variant):
        path = repr(str(evidence.checkpoint.path))
        raise ValueError(f"the names and shapes of {path} do not show the size of its images: pass image_size=...")
    return row.image_size, f"the table ({row.name})"


def _saved(evidence, variant, given):
    """Return the config and sources of a file that states a whole config; config.json and the user come first."""
    model, path = evidence.saved_config, repr(str(evidence.checkpoint.path))
    depths = (model.field(name) or 0 for name in ("num_layers", "depths", "stage_sizes", "stem.stage_sizes"))
    blocks = sum(sum(depth) if isinstance(depth, tuple) else depth for depth in depths)
    if blocks > len(evidence.entries):  # building them would take forever
        count = len(evidence.entries)
        raise ValueError(f"{path} must hold the arrays of {blocks} blocks, which it states; it holds {count} arrays")
    for name, value in (VARIANTS[variant].defining if variant in VARIANTS else {}).items():
        if name not in given and model.field(name) != value:
            raise ValueError(f"{path} does not fit {variant}: {Difference(name, model.field(name), value)}")
    changes = {difference.name: difference.theirs for difference in differences(evidence.stated, model)}
    if given.get("classes", model.classes) != model.classes:  # of the old head
        changes |= {name: None for name in ("classifier_activation", "representation_size") if hasattr(model, name)}
    if "image_size" in given and model.field("embedding.images_per_sequence"):
        changes["embedding.images_per_sequence"] = None
    sources = {name: "the config that was saved" for name in flattened(model.to_dict())}
    sources |= dict.fromkeys(changes, _FILE) | dict.fromkeys(given, _ARGUMENTS)
    return model.replace(**{**changes, **given}), sources


def _labels(config, evidence, release):
    """Return the labels of the head of a file, and a note if they are assumed."""
    if not evidence.head_arrays:
        return None, None
    if release is not None and release.labels is not None:
        return release.labels, None
    if evidence.labels is not None and len(evidence.labels) == config.classes:
        return evidence.labels, None
    imagenet = label_set("imagenet2012")
    if release is None and evidence.library != "keras" and config.classes == len(imagenet):
        return imagenet, "1000 classes: the labels are assumed to be those of ImageNet-2012"
    return None, None
