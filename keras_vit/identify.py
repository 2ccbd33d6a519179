"""Identify the model of a weights file: the variant or family that its names, shapes and config.json fit."""

import math
from typing import Any

from keras_vit import checks
from keras_vit.checkpoints.architecture import grid_of, shown_fields
from keras_vit.config import UNPOOLED, ViTConfig
from keras_vit.config.vit import CLASS_TOKEN_POOLINGS
from keras_vit.variants import FAMILIES, VARIANTS, merged, reference_config

# Shown fields that a published file shares with its variant; head and pooling may differ.
_SIZES = ("patch_size", "hidden_dim", "num_layers", "mlp_dim")
_STRUCTURE = (
    *("num_registers", "qk_norm", "qkv_bias", "distilled", "stem", "position_embedding", "block.order"),
    *("embedding.patch_bias", "embedding.patch_norm", "embedding.pre_norm", "block.norm", "block.gated"),
    *("block.bias", "block.key_bias", "block.attention_norm", "block.mlp_norm"),
)
# Fields that change the outputs and that no array shows.
_UNSHOWN = ("num_heads", "gelu", "block.order", "block.rotary", "head.map_heads", "head.map_prefix")
_INITIAL_LAYER_SCALE = 1e-5  # of a file whose family is unknown; the value in the file replaces it


def candidates(fields: dict[str, Any], names: Any = None) -> list[str]:
    """Return the variants whose architecture a file shows, in the order of the table.

    Args:
        fields: see `shown_fields`.
        names: names of the variants to consider; None for all ViTs.
    """
    names = VARIANTS if names is None else names
    vits = [name for name in names if VARIANTS[name].config_class is ViTConfig]
    return [name for name in vits if _fits(fields, reference_config(name), VARIANTS[name].family is not None)]


def _fits(fields, config, is_of_family, checked=(*_SIZES, *_STRUCTURE)):
    """Return whether a file shows the structure of a config; plain ViTs may have no class token and fixed positions."""
    for name in checked:
        shown, ours = fields.get(name), config.field(name)
        if name == "stem":
            ours = None if ours is None else {"stage_sizes": ours.stage_sizes, "width_factor": ours.width_factor}
        elif name == "block.order":
            shown, ours = shown == "parallel", ours == "parallel"
        elif name == "position_embedding" and not is_of_family:
            shown = ours = (shown == "relative_2d", ours == "relative_2d") if "relative_2d" in (shown, ours) else None
        elif name == "position_embedding" and str(ours).startswith("sincos2d"):
            ours = "none"
        elif name == "distilled" and not is_of_family:
            continue
        if shown != ours:
            return False
    if config.attention == "axial" or fields["has_layer_scale"] != (config.layer_scale_init is not None):
        return False
    return not is_of_family or fields["class_token"] == (config.num_class_tokens > 0)


def identify(description: Any, variant: str | None, given: dict[str, Any]) -> tuple[ViTConfig, Any, list[str]]:
    """Return the config of the ViT in a file, its variant or None, and notes on what the file does not show.

    Args:
        description: see `checkpoints.description.describe`.
        variant: name of a variant or of a family, or None.
        given: the user's arguments; fields of nested configs have a dot in their names.

    Raises:
        ValueError: if several variants fit, none fits `variant`, or a field is unknown; the message names the argument.
    """
    path, stated = str(description.checkpoint.path), description.stated
    try:
        fields = shown_fields(description.names, description.entries)
    except ValueError as error:
        raise ValueError(f"{path!r} must hold a Vision Transformer: {error}") from None
    known = {**{name: value for name, value in stated.items() if value is not None}, **given}
    if variant in FAMILIES:
        families, rows = [variant], [name for name, row in VARIANTS.items() if row.family == variant]
    else:
        families = [name for name in description.published if name in FAMILIES]
        rows = None if variant is None else [variant]
    found = candidates(fields, rows)
    if variant in VARIANTS and not found:
        fitting = candidates(fields)
        hint = f"the weights of {' or '.join(fitting)}" if fitting else f"another architecture: {_described(fields)}"
        raise ValueError(f"{path!r} must hold the weights of {variant}; it holds {hint}")
    of_family = [name for name in found if VARIANTS[name].family in families]
    found = of_family or found
    differing = [] if not found else _differing(found, known, description)
    if differing and rows is None or len(differing) and variant in FAMILIES:
        raise ValueError(
            f"names and shapes of {path!r} fit {', '.join(found)}, which differ in {', '.join(differing)}: pass "
            f"variant={' or variant='.join(map(repr, found))}"
        )
    notes: list[str] = []
    if found:
        row = VARIANTS[found[0]]
        base = reference_config(row.name).to_dict()
        notes.append(f"the model is {row.name}, by the names and shapes of the file")
    else:
        row = None
        if not families and description.checkpoint.config is None:
            families = _families(fields)
            if len(families) > 1 and (unlike := _unlike(families, known)):
                raise ValueError(
                    f"names and shapes of {path!r} fit several families, which differ in {', '.join(unlike)}: pass "
                    f"variant={' or variant='.join(map(repr, families))}"
                )
        base = FAMILIES[families[0]].config if families else {}
        notes.append(f"the sizes are those of no published model; the family is {families[0] if families else 'ViT'}")
    config = _config(path, base, families, row, fields, description, known, given, notes)
    return config, row, notes


def _config(path, base, families, row, fields, description, known, given, notes):
    """Return the config: what the file shows and states, then the user's arguments, then the table."""
    shown = {name: value for name, value in fields.items() if name not in ("has_layer_scale", "table_rows", "stem")}
    values: dict[str, Any] = {"name": families[0] if families else "vit", **base}
    if row is None and fields.get("stem"):
        values["stem"] = {"class_name": "ResNetConfig", **fields["stem"], "style": description.names.stem_style}
    if values.get("position_embedding", "learned").startswith("sincos2d") or "position_embedding" in given:
        shown.pop("position_embedding")
    pooling = shown.pop("pooling", None) or known.get("pooling") or values.get("pooling", "token")
    if pooling in ("map", "aim") and "pooling" not in fields:
        pooling = "token"
    if not fields["class_token"] and pooling in CLASS_TOKEN_POOLINGS:
        pooling = "gap"
    if pooling in CLASS_TOKEN_POOLINGS or not fields["class_token"]:
        shown["class_token"] = None
    norm = shown.pop("norm_position")
    if norm == "before_pooling" and (known.get("norm_position") == "after_pooling" or _is_shared_norm(description)):
        norm = known.get("norm_position") or values.get("norm_position", norm)
    shown |= {"pooling": pooling, "norm_position": norm}
    if pooling != "token_gap":
        shown.pop("head.num_blocks", None)
    if pooling == "map" and shown.get("head.map_mlp_dim") == fields["mlp_dim"]:
        shown["head.map_mlp_dim"] = None
    values["layer_scale_init"] = (values.get("layer_scale_init") or _INITIAL_LAYER_SCALE) if fields["has_layer_scale"] else None
    if not fields["include_top"]:
        values.pop("classes", None)
    flat = {**shown, **{name: value for name, value in known.items() if name not in shown or name in given}}
    usual = {name: value for name, value in description.usual.items() if name in ("gelu", "epsilon")}
    for name, value in usual.items():
        if flat.get(name) is None and values.get(name) is None:
            flat[name] = value
    _fill_unknown(path, flat, values, fields, notes, bool(row or families))
    flat["image_size"] = _image_size(path, flat, values, fields, description, row, notes)
    if "embedding.class_position" not in flat and flat.get("position_embedding", values.get("position_embedding")) == "learned":
        flat["embedding.class_position"] = _has_class_rows(fields, flat)
    for name in [name for name in flat if name.startswith("stem.")]:
        if not values.get("stem"):
            del flat[name]
    if not merged({}, values.get("block", {})).get("rotary"):
        rotary = [name for name in flat if name.startswith("block.rotary.")]
        if "block.rotary.kind" not in flat:
            for name in rotary:
                del flat[name]
    nested = {name: value for name, value in flat.items() if "." in name}
    plain = {name: value for name, value in flat.items() if "." not in name and name in ViTConfig.__dataclass_fields__}
    for name, value in nested.items():
        values = merged(values, _nested(name, value))
    return ViTConfig.from_dict({**values, **plain})


def _nested(name, value):
    holder, dot, rest = name.partition(".")
    return {holder: _nested(rest, value) if dot else value}


def _fill_unknown(path, flat, values, fields, notes, is_known):
    """Check that every field that no array shows is known, and note which come from the table."""
    from_table = []
    for name in ("num_heads", "gelu", "epsilon"):
        if name == "gelu" and fields["block.gated"] and "pooling/mlp" not in fields and flat.get("pooling") != "map":
            flat.setdefault("gelu", values.get("gelu") or "erf")  # SwiGLU has no GELU
            continue
        if flat.get(name) is not None:
            continue
        if values.get(name) is None:
            raise ValueError(
                f"names and shapes of {path!r} do not show {name}, and its sizes are those of no published model: pass "
                f"{name}=... ({_described(fields)})"
            )
        from_table.append(f"{name}={values[name]!r}")
    if from_table and is_known:
        notes.append(f"from the table of the family: {', '.join(from_table)}")


def _image_size(path, flat, values, fields, description, row, notes):
    """Return the (height, width): the user's, that of the stated grid, of the table, or of the variant."""
    if flat.get("image_size") is not None:
        return flat["image_size"]
    patch = fields["patch_size"]
    step = 1 if not fields.get("stem") else math.prod([4, *(2 for _ in fields["stem"]["stage_sizes"][1:])])
    grid = description.grid_size or grid_of(fields)[0] or _grid_of_bias(description)
    if grid is not None:
        return tuple(side * size * step for side, size in zip(grid, patch, strict=True))
    if row is None or fields.get("table_rows"):
        raise ValueError(f"names and shapes of {path!r} do not show the size of its images: pass image_size=...")
    notes.append(f"image_size={row.image_size}, the usual one of {row.name}")
    return row.image_size


def _grid_of_bias(description):
    """Return the square grid of a table of 2-D offsets with three class rows, or None."""
    tables = [entry.shape for name, entry in description.entries.items() if name.endswith("relative_position_bias_table")]
    side = math.isqrt(max(tables[0][0] - 3, 0)) if tables else 0
    return (side // 2 + 1,) * 2 if side % 2 and side**2 == tables[0][0] - 3 else None


def _has_class_rows(fields, flat):
    """Return whether the position table has rows for class tokens."""
    size = checks.check_pair("image_size", flat["image_size"])
    patches = math.prod(side // step for side, step in zip(size, fields["patch_size"], strict=True))
    prefix = int(fields["class_token"]) + int(fields["distilled"])
    if fields.get("table_rows") in (patches, patches + prefix):
        return fields["table_rows"] == patches + prefix and prefix > 0 or prefix == 0
    return grid_of(fields)[1]


def _is_shared_norm(description):
    """Return whether the layout has one name for the norm before and after pooling, as OpenCLIP's `ln_post`."""
    rules = {rule.ours: rule.theirs for rule in description.names.rules if rule.ours.startswith("encoder_norm")}
    return rules.get("encoder_norm/gamma") == rules.get("encoder_norm@after_pooling/gamma")


def _differing(found, known, description):
    """Return the fields in which variants differ, that no array shows and neither the file states nor the user gives."""
    configs = [reference_config(name) for name in found]
    usual = description.usual
    differing = []
    for name in _UNSHOWN:
        is_known = any(key == name or key.startswith(f"{name}.") for key in known)
        values = [usual.get("gelu") if name == "gelu" and c.gelu is None else c.field(name) for c in configs]
        if not is_known and any(value != values[0] for value in values):
            differing.append(name)
    if "gelu" in differing and all(config.block.gated for config in configs):
        differing.remove("gelu")
    return differing


def _families(fields):
    """Return the families whose structure a file shows, of those with special parts."""
    found = []
    for name, family in FAMILIES.items():
        config = ViTConfig.from_dict(merged({"name": name, **_SMALL}, family.config))
        checked = [field for field in _STRUCTURE if field not in ("block.gated", "block.mlp_norm")]
        if _fits(fields, config, True, checked):
            found.append(name)
    return found


def _unlike(families, known):
    """Return the unshown fields in which families differ and that are not known."""
    configs = [ViTConfig.from_dict(merged({"name": name, **_SMALL}, FAMILIES[name].config)) for name in families]
    names = [name for name in (*_UNSHOWN, "epsilon") if name != "num_heads"]
    return [
        name
        for name in names
        if not any(key == name or key.startswith(f"{name}.") for key in known)
        and any(config.field(name) != configs[0].field(name) for config in configs)
    ]


_SMALL = {"image_size": 64, "patch_size": 16, "hidden_dim": 64, "num_layers": 1, "num_heads": 1, "mlp_dim": 64}


def _described(fields):
    sizes = ", ".join(f"{name}={fields[name]}" for name in _SIZES)
    return f"{sizes}, num_registers={fields['num_registers']}"
