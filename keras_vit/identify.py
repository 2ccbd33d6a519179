"""Identify the ViT in a weights file: what its arrays show, its config.json states, and the table of variants adds."""

from collections.abc import Iterable, Mapping
from typing import Any

from keras_vit.checkpoints.architecture import grid_of, has_class_rows, shown_fields, stride_of, window_of
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.checkpoints.names.rules import LAYOUTS
from keras_vit.config import ViTConfig
from keras_vit.config.base import count_patches, flattened, with_field
from keras_vit.config.unseen import differences
from keras_vit.config.vit import CLASS_TOKEN_POOLINGS
from keras_vit.variants import FAMILIES, VARIANTS, Family, Variant, merged, reference_config

_SIZES = ("patch_size", "hidden_dim", "num_layers", "mlp_dim")
# What the arrays of a published file have in common with its variant; class tokens, pooling and head may differ.
_STRUCTURE = (
    *("num_registers", "qk_norm", "qkv_bias", "embedding.patch_bias", "embedding.patch_norm", "embedding.pre_norm"),
    *("block.norm", "block.bias", "block.key_bias", "block.attention_norm"),
)
_OF_MLP = ("block.gated", "block.mlp_norm")  # a family may have variants with both values
# Fields that no array shows and that change the outputs.
_HIDDEN = (
    *("num_heads", "gelu", "block.order", "block.rotary", "head.map_heads", "head.map_prefix"),
    "embedding.square_positions",
)
_SUGGESTED = ("window.", "embedding.resize")
_ATTENTIVE = ("map", "aim")
# families without layouts of their own
_USUAL_FAMILIES = {None, *FAMILIES}.difference(*(layout.published for layout in LAYOUTS[ViTConfig.family].values()))
_INITIAL_LAYER_SCALE = 1e-5  # replaced by the file's values


def candidates(fields: Mapping[str, Any], names: Iterable[str] = VARIANTS) -> list[str]:
    """Return the variants whose architecture a file shows, in the order of the table.

    Args:
        fields: see `shown_fields`.
        names: names of the variants to consider.
    """
    vits = [name for name in names if VARIANTS[name].config_class is ViTConfig]
    checked = (*_SIZES, *_STRUCTURE, *_OF_MLP)
    return [name for name in vits if _fits(fields, reference_config(name), VARIANTS[name].family is not None, checked)]


def _fits(fields, config, is_published, checked):
    """Return whether a file shows a config; a plain ViT may also have no class token, or fixed positions."""
    stem = config.stem and {"stage_sizes": config.stem.stage_sizes, "width_factor": config.stem.width_factor}
    kinds = [
        kind if kind == "relative_2d" else "other" for kind in (fields["position_embedding"], config.position_embedding)
    ]
    if is_published:
        kinds = [fields["position_embedding"], config.position_embedding.replace("sincos2d_mae", "none")]
    skipped = () if config.qkv_bias else ("block.key_bias",)
    is_flexible = config.embedding.kernel_size is not None  # FlexiViT: a kernel and a table of any size
    if not (fields["qkv_bias"] or config.block.key_bias):
        skipped = ("qkv_bias", "block.key_bias")  # timm leaves the zero biases of DINOv3 out
    skipped += ("patch_size",) if is_flexible else ()
    pairs = [
        *((fields[name], config.field(name)) for name in checked if name not in skipped),
        (is_flexible and grid_of(fields)[1], False),
        (fields.get("stem"), stem),
        (fields.get("head.neck") is None, config.head.neck is None),
        (fields.get("block.order") == "parallel", config.block.order == "parallel"),
        (fields["has_layer_scale"], config.layer_scale_init is not None),
        (config.attention, "global"),
        kinds,
    ]
    if is_published:
        pairs += [(fields["class_token"], config.num_class_tokens > 0), (fields["distilled"], False)]
        if fields.get("pooling") in _ATTENTIVE:
            pairs.append((fields["pooling"], config.pooling))
    return all(shown == ours for shown, ours in pairs)


def identify(
    description: Any, variant: str | None, arguments: Mapping[str, Any]
) -> tuple[Any, Variant | Family | None, tuple[str, ...]]:
    """Return the config of the ViT in a file, its variant or family, and notes on what the file does not show.

    Of a file that states the whole config of a model of any architecture, it returns this config.

    Args:
        description: see `checkpoints.description.describe`.
        variant: name of a variant or of a family, or None.
        arguments: fields that the user sets, with dots for those of nested configs; None leaves a field open.

    Raises:
        ValueError: if several variants or families fit that give other outputs, none fits `variant`, or a field is
            unknown; the message names the argument to pass.
    """
    path = repr(str(description.checkpoint.path))
    given = {name: value for name, value in arguments.items() if value is not None or "." in name}
    if description.model is not None and variant in (None, description.model.name):
        return _restored(description, given)
    try:
        fields = shown_fields(description.names, description.entries, description.grid_size)
    except ValueError as error:
        raise ValueError(f"{path} must hold a Vision Transformer: {error}") from None
    foreign = find_foreign(description.architecture) if variant is None else None
    stated = description.stated_for(given.get("include_top", True), given.get("classes", description.classes))
    known = {name: value for name, value in stated.items() if value is not None or "." in name} | given
    families = [variant] if variant in FAMILIES else [name for name in description.published if name in FAMILIES]

    found = candidates(fields, _considered(variant, foreign, description.names))
    if variant is None and foreign is None:  # the table of FlexiViT is smaller than those of other ViTs
        configs = {name: reference_config(name) for name in found}
        flexible = [name for name in found if configs[name].field("embedding.kernel_size")]
        is_small = any(configs[name].field("embedding.position_grid") == grid_of(fields)[0] for name in flexible)
        found = flexible if is_small else [name for name in found if name not in flexible]
    if variant in VARIANTS and not found:
        raise ValueError(f"{path} must hold the weights of {variant}; it holds {_described(fields)}")
    if foreign is not None:
        families = [name for name in families if name == VARIANTS[foreign.variant].family] or families
    found = [name for name in found if VARIANTS[name].family in families] or found
    is_pooled = fields.get("pooling") in _ATTENTIVE
    decided = known if is_pooled else {"head.map_heads": None, "head.map_prefix": None, **known}
    table: Variant | Family | None
    if found:
        table, values = VARIANTS[found[0]], flattened(reference_config(found[0]).to_dict())
        _check_equal(path, {name: reference_config(name) for name in found}, decided, description.usual)
        notes = [f"the names and shapes of the file are those of {found[0]}"]
    else:
        if variant not in FAMILIES and description.checkpoint.config is None:
            families = _families(fields, families or _USUAL_FAMILIES - {None}) or families[:1]
            _check_equal(path, {name: _family_config(name) for name in families}, {"num_heads": None, **decided}, {})
        checked = [name for name in _STRUCTURE if name not in given]
        if variant is not None and not _fits(fields, _family_config(variant), True, checked):
            raise ValueError(f"{path} must hold a model of the family {variant!r}; it holds {_described(fields)}")
        table = FAMILIES[families[0]] if families else None
        values = {"name": families[0] if families else "vit", **flattened(table.config if table else {})}
        notes = [f"no published model has these sizes; built as one of the family {table.title if table else 'ViT'}"]
    config = _complete(path, values, fields, known, given, description, table, notes)
    return config, table, tuple(notes)


def _restored(description, given):
    """Return what `identify` returns, for a file that states its whole config; config.json and the user come first."""
    model = description.model
    depths = (model.field(name) or 0 for name in ("num_layers", "depths", "stage_sizes", "stem.stage_sizes"))
    blocks = sum(sum(depth) if isinstance(depth, tuple) else depth for depth in depths)
    if blocks > len(description.entries):  # building them would take forever
        path, count = str(description.checkpoint.path), len(description.entries)
        raise ValueError(f"{path!r} must hold the arrays of {blocks} blocks, which it states; it holds {count} arrays")
    changes = {difference.name: difference.theirs for difference in differences(description.stated, model)}
    if given.get("classes", model.classes) != model.classes:  # of the old head
        changes["classifier_activation"] = None
    if "image_size" in given and model.field("embedding.images_per_sequence"):
        changes["embedding.images_per_sequence"] = None
    table = VARIANTS.get(model.name) or FAMILIES.get(model.name)
    return model.replace(**{**changes, **given}), table, ("the config is that of the model that was saved",)


def _considered(variant, foreign, layout):
    """Return the names of the variants that a file may hold; some families have layouts of their own."""
    if variant in FAMILIES:
        return [name for name, row in VARIANTS.items() if row.family == variant]
    if variant is not None:
        return [variant]
    if foreign is not None:
        return [foreign.variant]
    found = [name for name, row in VARIANTS.items() if row.family in (layout.published or _USUAL_FAMILIES)]
    if layout.library == "official":  # such as DeiT, DINO and MAE, whose authors publish other layouts
        return [name for name in found if VARIANTS[name].defaults.get("gelu") in (None, layout.gelu)]
    return found


def _check_equal(path, configs, known, usual):
    """Raise an error if these variants or families give different outputs for the same arrays.

    Args:
        path: path of the file, quoted.
        configs: dict from their names to their configs.
        known: fields that the file states or the user gives.
        usual: values that the layout implies.
    """
    differing = []
    for name in _HIDDEN:
        values = {config.field(name) or usual.get(name) for config in configs.values()}
        is_unused = name == "gelu" and all(config.block.gated for config in configs.values())
        if len(values) > 1 and not is_unused and not any(key.startswith(name) for key in known):
            differing.append(name)
    if differing:
        choices = " or ".join(f"variant={name!r}" for name in configs)
        raise ValueError(
            f"the names and shapes of {path} fit {', '.join(configs)}, which differ in {', '.join(differing)}: "
            f"pass {choices}"
        )


def _family_config(name):
    """Return a small config of a family; that of a plain ViT for `vit`."""
    sizes = {"image_size": 64, "patch_size": 16, "hidden_dim": 64, "num_layers": 1, "num_heads": 1, "mlp_dim": 64}
    return ViTConfig.from_dict(merged({"name": name, **sizes}, FAMILIES[name].config if name in FAMILIES else {}))


def _families(fields, considered):
    """Return the considered families whose structure a file shows; none if it shows that of a plain ViT."""
    if _fits(fields, _family_config("vit"), True, _STRUCTURE):
        return []
    configs = {name: _family_config(name) for name in FAMILIES if name in considered}
    pools = fields.get("pooling") in _ATTENTIVE
    alike = {name: config for name, config in configs.items() if (config.pooling in _ATTENTIVE) == pools}
    return [name for name, config in alike.items() if _fits(fields, config, True, _STRUCTURE)]


def _complete(path, values, fields, known, given, description, table, notes):
    """Return the config: `values` of the table, then what the file shows, what it states, and what the user gives."""
    # what the arrays only suggest, files may state
    shown = {key: x for key, x in fields.items() if key not in known or not key.startswith(_SUGGESTED)}
    rows, has_scale = shown.pop("table_rows", 0), shown.pop("has_layer_scale")
    if (stem := shown.pop("stem", None)) is not None:
        values["stem"] = {"class_name": "ResNetConfig", **stem, "style": description.names.stem_style}
    if any(str(held.get("position_embedding")).startswith("sincos2d") for held in (values, known)):
        del shown["position_embedding"]
    if not shown["qkv_bias"]:
        del shown["block.key_bias"]
    shown |= _pooling(shown, known, values, description)
    values["layer_scale_init"] = (values.get("layer_scale_init") or _INITIAL_LAYER_SCALE) if has_scale else None
    flat = {**values, **known, **shown, **given}
    open_fields = [name for name in ("num_heads", "gelu", "epsilon") if name not in {**known, **shown}]
    for name in open_fields:
        if flat.get(name) is None and name in description.usual:
            flat[name] = description.usual[name]
        elif name == "gelu" and flat["block.gated"] and flat["pooling"] != "map":
            flat[name] = flat.get(name) or "erf"  # SwiGLU has no GELU
        elif flat.get(name) is None:
            raise ValueError(
                f"the names and shapes of {path} do not show {name}: pass {name}=... (it has {_sizes(fields)})"
            )
        else:
            notes.append(f"{name}={flat[name]!r} is from the table")
    is_flexible = values.get("embedding.kernel_size") is not None
    if is_flexible or flat.get("embedding.square_positions"):
        patch_size = (values if is_flexible else flat).get("patch_size", fields["patch_size"])
        flat |= {**description.buffers(is_flexible), "patch_size": patch_size, **given}
    usual = table.image_size if is_flexible and isinstance(table, Variant) else None
    size = given.get("image_size") or usual
    if size is None:
        size = _image_size(path, fields, rows, description, table, notes)
        if any(side % step for side, step in zip(size, fields["patch_size"], strict=True)):
            flat |= {"embedding.whole_patches": False, **given}  # the file is of a library that allows it
    if "embedding.class_position" not in given and flat.get("position_embedding", "learned") == "learned":
        flat["embedding.class_position"] = has_class_rows({**fields, "table_rows": rows}, size)
    config = ViTConfig.from_dict(_nested({**flat, "image_size": size}))
    for name in sorted(given.keys() - flattened(config.to_dict())):
        raise ValueError(f"{name} must be left out: the model in {path} has no such part; got {name}={given[name]!r}")
    return config


def _pooling(shown, known, values, description):
    """Return pooling, norm, class token and the parts of the head that a file shows, as fields of the config."""
    norm, usual_norm = shown["norm_position"], values.get("norm_position", "before_pooling")
    names = {rule.ours: rule.theirs for rule in description.names.rules}
    if names.get("encoder_norm/gamma") == names.get("encoder_norm@after_pooling/gamma"):  # one name for both
        norm = known.get("norm_position") or usual_norm
    usual = values.get("pooling", "token") if norm == usual_norm else "token"
    pooling = shown.get("pooling") or known.get("pooling") or shown.get("usual_pooling") or usual
    if pooling in _ATTENTIVE and "pooling" not in shown:
        pooling = "token"  # the file has no attention pooling
    if not shown["class_token"] and pooling in CLASS_TOKEN_POOLINGS:
        pooling = "gap"
    map_mlp_dim = shown.get("head.map_mlp_dim")
    return {
        "pooling": pooling,
        "norm_position": norm,
        # a config need not state what follows from the pooling
        "class_token": None if shown["class_token"] == (pooling in CLASS_TOKEN_POOLINGS) else shown["class_token"],
        "head.num_blocks": shown.get("head.num_blocks", 1) if pooling == "token_gap" else 1,
        "head.map_mlp_dim": map_mlp_dim if pooling == "map" and map_mlp_dim != shown["mlp_dim"] else None,
    }


def own_size(description, config):
    """Return the image size of the position table of a file, or the config's if the file has no table of a grid.

    Args:
        description: `Description` of the file.
        config: config of a ViT without stem that the file fits.
    """
    grid = description.grid_size
    if grid is None and description.names is not None and config.family == "vit":
        grid, _ = grid_of(shown_fields(description.names, description.entries, description.grid_size))
    if grid is None or config.field("stem") is not None or config.field("embedding.position_grid"):
        return config.image_size
    return _size_of(grid, config.patch_size, description, config.field("embedding.pad"))


def _size_of(grid, patch_size, description, pad, stride=1):
    """Return the image size that a file states, if its patches form this grid, or else that of whole patches."""
    preprocessing = description.preprocessing
    for size in (preprocessing and preprocessing.image_size, description.image_size):
        if size and count_patches([-(-side // stride) for side in size], patch_size, pad) == tuple(grid):
            return size
    return tuple(side * step * stride for side, step in zip(grid, patch_size, strict=True))


def _image_size(path, fields, rows, description, table, notes):
    """Return the (height, width) that the file states or its table shows, or that its variant is used at."""
    grid = description.grid_size or grid_of({**fields, "table_rows": rows})[0]
    if grid is None and (side := window_of(description.entries, num_others=3)):  # those of the class token
        grid = side, side
    if grid is not None:
        pad, stride = description.stated.get("embedding.pad"), stride_of(fields)
        return _size_of(grid, fields["patch_size"], description, pad, stride)
    if rows == 0 and description.preprocessing is not None:
        notes.append("image_size is that of its preprocessing")
        return description.preprocessing.image_size
    if rows or not isinstance(table, Variant):
        raise ValueError(f"the names and shapes of {path} do not show the size of its images: pass image_size=...")
    notes.append(f"image_size={table.image_size} is the usual one of {table.name}")
    return (table.image_size,) * 2


def suited(config, *protocols):
    """Return the first preprocessing that can have a config's channels, at its image size; None if there is none.

    Args:
        config: config of a model.
        *protocols: `Preprocessing` or None.
    """
    known = (p for p in protocols if p is not None and config.channels in (1, p.channels))
    known = (p.grey() if config.channels == 1 else p for p in known)
    return next((p.at(config.image_size) if config.fixed_size else p for p in known), None)


def _nested(flat):
    """Return the dict of a config for names with dots; what no field of `ViTConfig` holds is left out."""
    values: dict[str, Any] = {}
    has_rotary = flat.get("block.rotary.kind") is not None and flat.get("block.rotary", 0) is not None
    has_window = any(name.startswith("window.") and value is not None for name, value in flat.items())
    parts = {"block.rotary.": has_rotary, "window.": has_window, "stem.": flat.get("stem")}
    absent = tuple(part for part, is_present in parts.items() if not is_present)
    for name, value in flat.items():
        is_field = name.partition(".")[0] in ViTConfig.__dataclass_fields__
        if is_field and not name.startswith(absent) and not (name == "block.rotary" and has_rotary):
            values = with_field(values, name, value)
    return values


def _described(fields):
    """Return what a file holds instead of the wanted variant, for an error."""
    fitting = candidates(fields)
    return f"those of {' or '.join(fitting)}" if fitting else f"a model with {_sizes(fields)}"


def _sizes(fields):
    return ", ".join(f"{name}={fields[name]}" for name in (*_SIZES, "num_registers"))
