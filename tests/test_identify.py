"""identify: the variant of a file, by the names and shapes of its arrays alone; no array is read."""

import pytest
from file_shapes import file_of

import keras_vit
from keras_vit.identify import identify
from keras_vit.variants import VARIANTS

_VITS = [name for name, row in VARIANTS.items() if row.family and row.config_class is keras_vit.ViTConfig]
_ALL = [name for name, row in VARIANTS.items() if row.config_class is keras_vit.ViTConfig]
_DEFAULT = ("DINOv2-B_14-reg4", "DINOv3-Splus_16", "SigLIP2-So400m_16", "CLIP-L_14", "EVA02-B_14", "BEiT-B_16")


def _libraries(name):
    family = VARIANTS[name].family
    in_transformers = ("beit", "clip", "dinov2", "dinov2_reg4", "dinov3", "siglip", "aimv2")
    libraries = {"timm": True, "huggingface": family in in_transformers}
    libraries["original"] = family in ("clip", "dinov2_reg4", "dinov3", "eva02")
    return [library for library, is_there in libraries.items() if is_there]


@pytest.mark.parametrize(
    ("name", "library"),
    [
        pytest.param(name, library, marks=() if name in _DEFAULT else pytest.mark.slow)
        for name in _VITS
        for library in _libraries(name)
        if (name, library) != ("AIMv2-L_14", "timm")  # timm's has no attention pooling
    ],
)
def test_each_variant_is_found_by_its_arrays(name, library):
    config, description = file_of(name, library)
    alike = {row for row in _ALL if _outputs(row) == _outputs(name)}
    try:
        built, table, _ = identify(description, None, {})
    except ValueError as error:  # others differ in what no array shows
        assert f"variant={name!r}" in str(error)
        built, table, _ = identify(description, name, {})
        alike = {name}
    assert table.name in alike
    if VARIANTS[table.name].family is None:  # the arrays are those of a plain ViT, too
        return
    changed = {"name": name, "image_size": config.image_size, "dtype": config.dtype, "epsilon": config.epsilon}
    if library == "timm" and config.num_registers:
        changed["embedding.class_position"] = config.embedding.class_position
    # what no array shows and changes no output
    for field in ("class_token", "layer_scale_init", "embedding.resize"):
        changed[field] = config.field(field)
    assert built.replace(**changed) == config


def _outputs(name):
    """Everything of a variant's config that changes outputs."""
    row = VARIANTS[name]
    values = row.config(image_size=row.image_size).to_dict()
    values["gelu"] = values["gelu"] or "erf"  # of a plain ViT with the names of timm
    left_out = ("name", "image_size", "layer_scale_init", "epsilon", "include_top", "classes", "class_token", "head")
    left_out += ("pooling", "norm_position")
    values["embedding"] = {key: value for key, value in values["embedding"].items() if key != "resize"}
    return {key: value for key, value in values.items() if key not in left_out}
