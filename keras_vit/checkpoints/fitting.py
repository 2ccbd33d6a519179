"""The variant or family of the table that a weights file belongs to, by what its arrays show and its JSON states."""

from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.checkpoints.names.rules import LAYOUTS
from keras_vit.checkpoints.shown import grid_of
from keras_vit.config import ViTConfig
from keras_vit.config.base import flattened
from keras_vit.config.fields import fields_of, names_of
from keras_vit.variants import FAMILIES, VARIANTS, reference_config

_ATTENTIVE = ("map", "aim")
# families without layouts of their own
_USUAL_FAMILIES = {None, *FAMILIES}.difference(*(layout.published for layout in LAYOUTS[ViTConfig.family].values()))
_PLAIN = ViTConfig(name="vit", image_size=16, patch_size=16, hidden_dim=64, num_layers=1, num_heads=1, mlp_dim=64)


def find_table(evidence, variant, given):
    """Return the `Variant` or `Family` of a file, None for a plain model of other sizes, and notes about it."""
    path = repr(str(evidence.checkpoint.path))
    if evidence.names is None:  # a file from Keras shows nothing
        return VARIANTS.get(variant) or FAMILIES.get(variant), ()
    stated = names_of(evidence.config_class, stated=True)
    if missing := [name for name in sizes_of(evidence.family) if name not in (*evidence.shown, *stated)]:
        if variant in VARIANTS:  # matching lists what is missing
            return VARIANTS[variant], ()
        raise ValueError(
            f"{path} must show {', '.join(missing)}: a patch projection, which must be a convolution of images, and "
            "the MLP of the first block were expected"
        )
    foreign = find_foreign(evidence.architecture) if variant is None else None
    found = _fitting(evidence, _considered(evidence, variant, foreign), given)
    if variant in VARIANTS:
        _check_named(evidence, variant, given)
        return VARIANTS[variant], ()
    families = [variant] if variant in FAMILIES else [name for name in evidence.published if name in FAMILIES]
    if variant is None and foreign is None:
        found = _of_flexible(evidence, found)
    elif foreign is not None:
        families = [name for name in families if name == VARIANTS[foreign.variant].family] or families
    found = [name for name in found if VARIANTS[name].family in families] or found
    pools = evidence.shown.get("pooling") in _ATTENTIVE
    found = [name for name in found if (reference_config(name).field("pooling") in _ATTENTIVE) == pools] or found
    if found:
        _check_equal(evidence, {name: flattened(reference_config(name).to_dict()) for name in found}, given)
        return VARIANTS[found[0]], (f"the names and shapes of the file are those of {found[0]}",)
    alike = _families(evidence, given)
    if variant is None and evidence.checkpoint.config is None:
        is_plain = not _differing(evidence, _PLAIN, True, {*given, *sizes_of(evidence.family)})
        families = [name for name in alike if name in (families or _USUAL_FAMILIES) and not is_plain] or families[:1]
        values = {name: {**flattened(FAMILIES[name].config), "num_heads": None} for name in families}
        _check_equal(evidence, values, given)
    elif variant is not None and variant not in alike:
        raise ValueError(f"{path} must hold a model of the family {variant!r}; it holds {_described(evidence, given)}")
    table = FAMILIES[families[0]] if families else None
    return table, (f"no published model has these sizes; built as one of the family {table.title if table else 'ViT'}",)


def _considered(evidence, variant, foreign):
    """Return the names of the variants that a file may hold; some families have layouts of their own."""
    if variant in FAMILIES:
        return [name for name, row in VARIANTS.items() if row.family == variant]
    if variant is not None or foreign is not None:
        return [variant or foreign.variant]
    found = [name for name, row in VARIANTS.items() if row.family in (evidence.names.published or _USUAL_FAMILIES)]
    if evidence.names.library == "official":  # such as DeiT, DINO and MAE, whose authors publish other layouts
        return [name for name in found if VARIANTS[name].defaults.get("gelu") in (None, evidence.names.gelu)]
    return found


def _check_named(evidence, variant, given):
    """Raise an error if a file holds another variant, or has other sizes; matching finds other differences."""
    row, published = VARIANTS[variant], evidence.names.published
    differing = _differing(evidence, reference_config(variant), row.family is not None, given)
    is_exact = "pooling" in given or not _differing(evidence, reference_config(variant), True, given)
    names = _fitting(evidence, VARIANTS, given)
    # A plain ViT may have any pooling, unless the file is that of a published family.
    held = names if differing else [] if is_exact else [name for name in names if VARIANTS[name].family]
    if published and row.family not in published:
        held = [FAMILIES[name].title for name in published]
    if held or set(differing) & set(sizes_of(evidence.family)):
        got = "; ".join(f"{name} is {theirs!r}, not {ours!r}" for name, (theirs, ours) in differing.items())
        text = f"holds the weights of {' or '.join(held)}, not" if held else "must hold the weights"
        raise ValueError(f"{str(evidence.checkpoint.path)!r} {text} of {variant}{got and f': {got}'}")


def sizes_of(family):
    """Return the names of the fields that every variant of a family of configs sets."""
    config = next(row.config_class for row in VARIANTS.values() if row.config_class.family == family)
    return [name for name, one in fields_of(config).items() if one.defines and one.required and "." not in name]


def _fitting(evidence, names, given):
    """Return those of the variants whose architecture a file shows."""
    rows = [VARIANTS[name] for name in names if VARIANTS[name].config_class.family == evidence.family]
    fits = lambda row: not _differing(evidence, reference_config(row.name), row.family is not None, given)  # noqa: E731
    return [row.name for row in rows if fits(row)]


def _families(evidence, given):
    """Return the families with a variant of the structure that a file shows, whatever its sizes."""
    skipped, pools = {*given, *sizes_of(evidence.family)}, evidence.shown.get("pooling") in _ATTENTIVE
    rows = [row for row in VARIANTS.values() if row.family and row.config_class.family == evidence.family]
    alike = [row for row in rows if not _differing(evidence, reference_config(row.name), True, skipped)]
    families = {row.family for row in alike if (reference_config(row.name).field("pooling") in _ATTENTIVE) == pools}
    return [name for name in FAMILIES if name in families]


def _differing(evidence, config, is_published, skipped):
    """Return {field: (what the file shows, its value in a config)} where both differ.

    Args:
        evidence: the `Evidence`.
        config: config of a variant.
        is_published: whether it is a variant of a family; others may also have fixed positions, no class token, or two.
        skipped: names of fields that may differ.
    """
    shown = evidence.shown
    declared = fields_of(type(config)).items()
    pairs = {name: (shown.get(name), config.field(name)) for name, one in declared if one.defines and name in shown}
    if config.family == ViTConfig.family:
        skipped = {*skipped, "distilled", "position_placement", "layer_scale_init"}
        if not (shown["qkv_bias"] or config.block.key_bias):
            skipped |= {"qkv_bias", "block.key_bias"}  # timm leaves the zero biases of DINOv3 out
        elif not config.qkv_bias:
            skipped |= {"block.key_bias"}
        kind, ours = shown.get("position_embedding", "none"), config.position_embedding.replace("sincos2d_mae", "none")
        stages = shown.get("stem.stage_sizes"), config.field("stem.stage_sizes")
        pairs |= {
            "stem.stage_sizes": stages,
            "layer scale": ("layer_scale_init" not in shown, config.layer_scale_init is not None),
            "parallel blocks": (shown.get("block.order") == "parallel", config.block.order == "parallel"),
            "attention": ("global", config.attention),
            "relative positions": (kind == "relative_2d", ours == "relative_2d"),
        }
        if config.embedding.kernel_size is not None:  # FlexiViT: a kernel and a table of any size
            skipped |= {"patch_size"}
            pairs["positions of class tokens"] = (grid_of(shown, evidence.table_rows)[1], False)
        if is_published:
            pairs |= {"position_embedding": (kind, ours), "distilled token": (shown["distilled"], False)}
            pairs["class token"] = (shown["class_token"], config.num_class_tokens > 0)
            if shown.get("pooling") in _ATTENTIVE:
                pairs["pooling"] = (shown["pooling"], config.pooling)
    return {name: pair for name, pair in pairs.items() if name not in skipped and pair[0] != pair[1]}


def _of_flexible(evidence, found):
    """Return the FlexiViTs of the variants if the file has their small table, else the other variants."""
    configs = {name: reference_config(name) for name in found}
    flexible = [name for name in found if configs[name].field("embedding.kernel_size")]
    grid = grid_of(evidence.shown, evidence.table_rows)[0] if flexible else None
    is_small = any(configs[name].field("embedding.position_grid") == grid for name in flexible)
    return flexible if is_small else [name for name in found if name not in flexible]


def _check_equal(evidence, tables, given):
    """Raise an error if variants or families give different outputs for the same arrays.

    Args:
        evidence: the `Evidence`.
        tables: dict from their names to their fields.
        given: fields that the user sets.
    """
    known = {**stated_fields(evidence, given), **given}
    if evidence.shown.get("pooling") not in _ATTENTIVE:
        known = {"head.map_heads": None, "head.map_prefix": None, **known}
    differing, wholes = [], ()
    for name, one in fields_of(evidence.config_class).items():
        if not one.defines or name in (*evidence.shown, "layer_scale_init") or name.startswith(wholes):
            continue
        wholes += (f"{name}.",)  # a part is compared as a whole
        values = {repr(_value_of(table, name) or evidence.usual.get(name)) for table in tables.values()}
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


def stated_fields(evidence, given):
    """Return the fields that a file states, without the activation of a head that the model does not load."""
    is_loaded = given.get("include_top", True) and given.get("classes", evidence.classes) == evidence.classes
    stated = {name: value for name, value in evidence.stated.items() if value is not None or "." in name}
    return {name: value for name, value in stated.items() if is_loaded or name != "classifier_activation"}


def _described(evidence, given):
    """Return what a file holds instead of the wanted family, for an error."""
    fitting = _fitting(evidence, VARIANTS, given)
    sizes = ", ".join(f"{name}={evidence.shown.get(name)}" for name in sizes_of(evidence.family))
    return f"those of {' or '.join(fitting)}" if fitting else f"a model with {sizes}"
