"""Names and values of other libraries are refused with a hint at ours."""

import dataclasses
import inspect

import pytest
from faults import for_each

import keras_vit
from keras_vit import checks

TINY = {
    "name": "tiny",
    "image_size": 8,
    "patch_size": 4,
    "hidden_dim": 8,
    "num_layers": 1,
    "num_heads": 2,
    "mlp_dim": 8,
}


@for_each(("theirs", "ours"), [row for row in checks.FOREIGN_ARGUMENTS.items() if row[0] != "pretrained"])
def test_names_of_other_libraries_are_answered_with_ours(theirs, ours):
    is_argument, is_field = ours in _arguments("ViT_B16"), ours in _fields(keras_vit.ViTConfig)
    assert is_argument or is_field
    assert theirs not in _arguments("ViT_B16") | _fields(keras_vit.ViTConfig)
    message = rf"'{theirs}' \(keras_vit calls it '{ours}'\)"
    for build in (keras_vit.ViT_B16, lambda **given: keras_vit.create_model("ViT-B_16", **given)):
        with pytest.raises(TypeError, match="ViT_B16 got an unexpected keyword argument " + message * is_argument):
            build(**{theirs: 1})
    with pytest.raises(ValueError, match="ViTConfig keys must be among .* got " + message * is_field):
        keras_vit.ViTConfig.from_dict({theirs: 1})


def test_load_answers_them_too(tmp_path):
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**TINY))
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "timm")
    with pytest.raises(TypeError, match=r"load got .* 'num_classes' \(keras_vit calls it 'classes'\); the"):
        keras_vit.load(tmp_path / "a.safetensors", num_heads=2, num_classes=3)


def test_names_that_another_family_has_are_taken_there_and_hint_at_nothing_it_lacks():
    swin = _fields(keras_vit.SwinConfig)
    assert {"embed_dim", "mlp_ratio"} <= checks.FOREIGN_ARGUMENTS.keys() & swin
    for theirs, ours in checks.FOREIGN_ARGUMENTS.items():
        if theirs not in swin and ours not in swin:
            with pytest.raises(ValueError, match="SwinConfig keys must be among") as error:
                keras_vit.SwinConfig.from_dict({theirs: 1})
            assert "keras_vit calls it" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "theirs", "ours"), [(name, *row) for name, rows in checks.FOREIGN_VALUES.items() for row in rows.items()]
)
def test_values_of_other_libraries_are_answered_with_ours(name, theirs, ours):
    assert getattr(keras_vit.ViTConfig(**TINY, **{name: ours}), name) == ours
    with pytest.raises(ValueError, match=rf"{name} must be one of .*={theirs!r} \(keras_vit calls it {ours!r}\)"):
        keras_vit.ViTConfig(**TINY, **{name: theirs})


def _arguments(constructor):
    return set(inspect.signature(getattr(keras_vit, constructor)).parameters)


def _fields(config_class):
    return {field.name for field in dataclasses.fields(config_class)}
