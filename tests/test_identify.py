"""identify: the variant of a file, by the names and shapes of its arrays alone; no array is read."""

import pathlib

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import names, save
from keras_vit.checkpoints.description import describe
from keras_vit.checkpoints.entries import Checkpoint, Entry
from keras_vit.checkpoints.names.rules import theirs_shape
from keras_vit.compat.graph import owned_variables
from keras_vit.compat.initial_values import build_deferred
from keras_vit.identify import identify
from keras_vit.variants import FAMILIES, VARIANTS

_VITS = [name for name, row in VARIANTS.items() if row.family and row.config_class is keras_vit.ViTConfig]
_ALL = [name for name, row in VARIANTS.items() if row.config_class is keras_vit.ViTConfig]
_DEFAULT = ("DINOv2-B_14-reg4", "DINOv3-Splus_16", "SigLIP2-So400m_16", "CLIP-L_14", "EVA02-B_14", "BEiT-B_16")


def file_of(name, library, **arguments):
    """Describes the file that `save_weights` would write for a variant, with shapes only."""
    model, _ = build_deferred(lambda: keras_vit.create_model(name, **arguments))
    layouts = names.LAYOUTS["vit"]
    hf_type = save._huggingface_type(model.config) if library == "huggingface" else None
    rules = save._chosen(layouts, library, hf_type, model.config, ".safetensors")
    shapes = {}
    for owned in owned_variables(model):
        path, shape = owned.variable.path, list(owned.variable.shape)
        rule = names.find_rule(rules, path, model.config)
        if path == "position_embs/embedding":
            table = next(iter(rules.position_tables))
            has_no_class_rows = library == "timm" and model.config.num_registers
            shapes[table] = [1, shape[1] - (model.config.num_class_tokens if has_no_class_rows else 0), shape[2]]
            continue
        shape[rule.axis] //= len(rule.theirs)
        for theirs in rule.theirs:
            stem, cut, _ = theirs.partition("#")
            piece = theirs_shape(shape, rule.form, model.config.num_heads)
            shapes[stem] = (shapes.get(stem, [0])[0] + piece[0], *piece[1:]) if cut else piece
    for key in [key for key in shapes if key.endswith(".qkv.bias") and library == "original"]:
        shapes[key] = [3 * model.config.hidden_dim]  # with the part that the mask removes
    entries = {key: Entry(key, tuple(shape), "F32", lambda shape=shape: np.zeros(shape)) for key, shape in shapes.items()}
    return model.config, describe(Checkpoint(pathlib.Path(name), "safetensors", entries, {}))


def found(description, **arguments):
    config, table, notes = identify(description, arguments.pop("variant", None), arguments)
    return config, table, notes


def _libraries(name):
    family = VARIANTS[name].family
    libraries = ["timm"]
    libraries += ["huggingface"] if family in ("beit", "clip", "dinov2", "dinov2_reg4", "dinov3", "siglip", "aimv2") else []
    libraries += ["original"] if family in ("clip", "dinov2_reg4", "dinov3", "eva02") else []
    return libraries


@pytest.mark.parametrize(
    ("name", "library"),
    [
        pytest.param(name, library, marks=() if name in _DEFAULT else pytest.mark.slow)
        for name in _VITS
        for library in _libraries(name)
    ],
)
def test_each_variant_is_found_by_its_arrays(name, library):
    if name in ("AIMv2-L_14",) and library == "timm":
        pytest.skip("timm's AIMv2 has no attention pooling")
    config, description = file_of(name, library)
    alike = {row for row in _ALL if _outputs(row) == _outputs(name)}
    try:
        built, table, _ = found(description)
    except ValueError as error:  # others differ in what no array shows
        assert f"variant={name!r}" in str(error)
        built, table, _ = found(description, variant=name)
        alike = {name}
    assert table.name in alike
    if VARIANTS[table.name].family is None:  # the arrays are those of a plain ViT, too
        return
    changed = {"name": name, "image_size": config.image_size, "dtype": config.dtype, "epsilon": config.epsilon}
    if library == "timm" and config.num_registers:
        changed["embedding.class_position"] = config.embedding.class_position
    assert built.replace(**changed) == config.replace(**{"class_token": built.class_token, "layer_scale_init": built.layer_scale_init, "embedding.resize": built.embedding.resize})


def _outputs(name):
    """Everything of a variant's config that changes outputs."""
    row = VARIANTS[name]
    values = row.config(image_size=row.image_size).to_dict()
    values["gelu"] = values["gelu"] or "erf"  # of a plain ViT with the names of timm
    left_out = ("name", "image_size", "layer_scale_init", "epsilon", "include_top", "classes", "class_token", "head")
    left_out += ("pooling", "norm_position")
    values["embedding"] = {key: value for key, value in values["embedding"].items() if key != "resize"}
    return {key: value for key, value in values.items() if key not in left_out}
