"""The variant or family of the table that a weights file belongs to, by what its arrays show and its JSON states."""

from keras_vit.checkpoints.evidence import ATTENTIVE
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.checkpoints.names.rules import LAYOUTS
from keras_vit.config import ViTConfig
from keras_vit.variants import FAMILIES, VARIANTS

# families without layouts of their own
_USUAL_FAMILIES = {None, *FAMILIES}.difference(*(layout.families for layout in LAYOUTS[ViTConfig.network].values()))
_PLAIN = ViTConfig(name="vit", image_size=16, patch_size=16, hidden_dim=64, num_layers=1, num_heads=1, mlp_dim=64)


def find_row(evidence, variant, given, known):
    """Return the `Variant` or `Family` of a file, None for a plain model of other sizes, and notes about it.

    Args:
        evidence: the `Evidence`.
        variant: name of a variant or family that the user names, or None.
        given: fields that the user sets.
        known: fields that the user sets or the file states.
    """
    path = repr(str(evidence.checkpoint.path))
    if evidence.layout is None:  # a file from Keras shows nothing
        return VARIANTS.get(variant) or FAMILIES.get(variant), ()
    unknown = [name for name, size in evidence.dimensions.items() if size is None]
    missing = [name for name in unknown if not evidence.declared[name].unseen]  # only arrays show these
    if missing:
        if variant in VARIANTS:  # matching lists what is missing
            return VARIANTS[variant], ()
        raise ValueError(
            f"{path} must show {', '.join(missing)}: a patch projection, which must be a convolution of images, and "
            "the MLP of the first block were expected"
        )
    if variant in VARIANTS:
        _check_named(evidence, variant, given)
        return VARIANTS[variant], ()
    foreign = find_foreign(evidence.timm_name) if variant is None else None
    families = [variant] if variant in FAMILIES else list(evidence.published)
    if foreign is not None:
        families = [name for name in families if name == VARIANTS[foreign.variant].family] or families
    found = _fitting(evidence, _considered(evidence, variant, foreign), given)
    if variant is None and foreign is None:
        found = _of_flexible(evidence, found)
    found = [name for name in found if VARIANTS[name].family in families] or found
    found = [name for name in found if _pools_alike(evidence, VARIANTS[name])] or found
    if found:
        _check_equal(evidence, {name: VARIANTS[name].fields for name in found}, known)
        return VARIANTS[found[0]], (f"the names and shapes of the file are those of {found[0]}",)
    family = _find_family(evidence, variant, families, given, known)
    title = family.title if family else "ViT"
    return family, (f"no published model has these sizes; built as one of the family {title}",)


def _find_family(evidence, variant, families, given, known):
    """Return the `Family` of a file whose sizes are of no variant; None for a plain model.

    Args:
        evidence, variant, given, known: see `find_row`.
        families: names of the families that the file states, the likeliest first.
    """
    alike = _families(evidence, given)
    if variant is not None and variant not in alike:
        held = f"it holds {_described(evidence, given)}"
        raise ValueError(f"{str(evidence.checkpoint.path)!r} must hold a model of the family {variant!r}; {held}")
    if variant is None and evidence.checkpoint.config_json is None:
        is_plain = not _differing(evidence, _PLAIN, True, {*given, *evidence.dimensions})
        usual = families or _USUAL_FAMILIES
        families = [name for name in alike if name in usual and not is_plain] or families[:1]
        values = {name: {**FAMILIES[name].fields, "num_heads": None} for name in families}
        _check_equal(evidence, values, known)
    return FAMILIES[families[0]] if families else None


def _considered(evidence, variant, foreign):
    """Return the names of the variants that a file may hold; some families have layouts of their own."""
    if variant in FAMILIES:
        return [name for name, row in VARIANTS.items() if row.family == variant]
    if foreign is not None:
        return [foreign.variant]
    found = [name for name, row in VARIANTS.items() if row.family in (evidence.layout.families or _USUAL_FAMILIES)]
    if evidence.layout.library == "official":  # such as DeiT, DINO and MAE, whose authors publish other layouts
        return [name for name in found if VARIANTS[name].defaults.get("gelu") in (None, evidence.layout.gelu)]
    return found


def _check_named(evidence, variant, given):
    """Raise an error if a file holds another variant, or has other sizes; matching finds other differences."""
    row, families = VARIANTS[variant], evidence.layout.families
    differing = _differing(evidence, row.reference, row.family is not None, given)
    is_exact = "pooling" in given or not _differing(evidence, row.reference, True, given)
    names = _fitting(evidence, VARIANTS, given)
    # A plain ViT may have any pooling, unless the file is that of a published family.
    held = names if differing else [] if is_exact else [name for name in names if VARIANTS[name].family]
    if families and row.family not in families:
        held = [FAMILIES[name].title for name in families]
    if held or set(differing) & set(evidence.dimensions):
        got = "; ".join(f"{name} is {theirs!r}, not {ours!r}" for name, (theirs, ours) in differing.items())
        text = f"holds the weights of {' or '.join(held)}, not" if held else "must hold the weights"
        raise ValueError(f"{str(evidence.checkpoint.path)!r} {text} of {variant}{got and f': {got}'}")


def _fitting(evidence, names, given):
    """Return those of the variants whose architecture a file shows."""
    rows = [VARIANTS[name] for name in names if VARIANTS[name].config_class.network == evidence.network]
    return [row.name for row in rows if not _differing(evidence, row.reference, row.family is not None, given)]


def _families(evidence, given):
    """Return the families with a variant of the structure that a file shows, whatever its sizes."""
    rows = [row for row in VARIANTS.values() if row.family and row.config_class.network == evidence.network]
    alike = [row for row in rows if not _differing(evidence, row.reference, True, {*given, *evidence.dimensions})]
    families = {row.family for row in alike if _pools_alike(evidence, row)}
    return [name for name in FAMILIES if name in families]


def _pools_alike(evidence, row):
    """Return whether both have a pooling by attention, or neither."""
    return (row.reference.field("pooling") in ATTENTIVE) == evidence.is_attentive


def _differing(evidence, config, is_strict, skipped):
    """Return {field, or words for a part: (what the file shows, its value in a config)} where both differ.

    Args:
        evidence: the `Evidence`.
        config: config of a variant.
        is_strict: whether positions and tokens count, too. Models without a family may have fixed positions, and no
            class token or two.
        skipped: names of fields that may differ.
    """
    shown = evidence.shown
    names = [name for name, one in evidence.declared.items() if one.defines and name in shown]
    pairs = {name: (shown[name], config.field(name)) for name in names}
    if config.network == ViTConfig.network:
        skipped = {*skipped, "distilled", "position_placement", "layer_scale_init"}
        if not (shown["qkv_bias"] or config.block.key_bias):
            skipped |= {"qkv_bias", "block.key_bias"}  # timm leaves the zero biases of DINOv3 out
        elif not config.qkv_bias:
            skipped |= {"block.key_bias"}
        kind, ours = shown.get("position_embedding", "none"), config.position_embedding
        ours = "none" if ours == "sincos2d_mae" else ours
        stages = shown.get("stem.stage_sizes"), config.field("stem.stage_sizes")
        pairs |= {
            "stem.stage_sizes": stages,
            # None is shown where there is none; the initial value is never shown
            "layer scale": ("layer_scale_init" not in shown, config.layer_scale_init is not None),
            "parallel blocks": (shown.get("block.order") == "parallel", config.block.order == "parallel"),
            "relative positions": [one.startswith("relative_") and one for one in (kind, ours)],
        }
        if config.embedding.kernel_size is not None:  # FlexiViT: a kernel and a table of any size
            skipped |= {"patch_size"}
            has_class_rows = evidence.position_table and evidence.position_table.has_class_rows(config.table_grid)
            pairs["positions of class tokens"] = (has_class_rows, False)
        if is_strict:
            pairs |= {"position_embedding": (kind, ours), "distilled token": (shown["distilled"], False)}
            pairs["class token"] = (shown["class_token"], config.num_class_tokens > 0)
            if evidence.is_attentive:
                pairs["pooling"] = (shown["pooling"], config.pooling)
    return {name: pair for name, pair in pairs.items() if name not in skipped and pair[0] != pair[1]}


def _of_flexible(evidence, found):
    """Return the FlexiViTs of the variants if the file has their small table, else the other variants."""
    grids = {name: VARIANTS[name].fields.get("embedding.position_grid") for name in found}
    flexible = [name for name in found if VARIANTS[name].fields.get("embedding.kernel_size")]
    is_small = any(grids[name] == evidence.grid for name in flexible)
    return flexible if is_small else [name for name in found if name not in flexible]


def _check_equal(evidence, tables, known):
    """Raise an error if variants or families give different outputs for the same arrays.

    Args:
        evidence: the `Evidence`.
        tables: dict from their names to their fields.
        known: see `find_row`.
    """
    if not evidence.is_attentive:
        known = {"head.map_heads": None, "head.map_prefix": None, **known}
    differing, wholes = [], ()
    for name, one in evidence.declared.items():
        if not one.defines or name in (*evidence.shown, "layer_scale_init") or name.startswith(wholes):
            continue
        wholes += (f"{name}.",)  # a part that defines, such as `block.rotary`, is compared as a whole
        values = {repr(_value_of(table, name) or evidence.of_layout.get(name)) for table in tables.values()}
        is_unused = name == "gelu" and all(table.get("block.gated") for table in tables.values())
        if len(values) > 1 and not is_unused and not any(key.startswith(name) for key in known):
            differing.append(name)
    if differing:
        choices = " or ".join(f"variant={name!r}" for name in tables)
        raise ValueError(
            f"the names and shapes of {str(evidence.checkpoint.path)!r} fit {', '.join(tables)}, which differ in "
            f"{', '.join(differing)}: pass {choices}"
        )


def _value_of(table, name):
    """Return a field, or all fields of a part."""
    return table.get(name, {key: table[key] for key in sorted(table) if key.startswith(f"{name}.")})


def _described(evidence, given):
    """Return what a file holds instead of the wanted family, for an error."""
    fitting = _fitting(evidence, VARIANTS, given)
    sizes = ", ".join(f"{name}={size}" for name, size in evidence.dimensions.items())
    return f"those of {' or '.join(fitting)}" if fitting else f"a model with {sizes}"
