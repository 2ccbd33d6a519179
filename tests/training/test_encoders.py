"""The blocks, heads and activations that training finds in a model, for every family."""

import keras
import numpy as np
import pytest
from families import FAMILIES

import keras_vit
from keras_vit.models.encoders import find_encoder, output_activation
from keras_vit.training.compile import head_layers, layer_rates

# top layer or unit of a stage -> depth, of the families that are not three steps from embedding to head
DEPTHS = {
    "plain": {"patch_encoder": 0, "position_embs": 0, "block_00": 1, "block_01": 2, "encoder_norm": 3, "head": 3},
    "registers": {"position_embs": 0, "block_00": 1, "position_embs_01": 1, "block_01": 2, "pooling": 3, "head": 3},
    "hybrid": {"root_conv": 0, "stage_1": 0, "stage_2": 0, "patch_encoder": 0, "block_00": 1, "block_01": 2, "head": 3},
    "hybrid on a CNN": {"conv": 0, "maps": 0, "block_00": 1, "block_01": 2, "head": 3},
    "axial": {"patch_encoder": 0, "block_00": 1, "block_01": 2, "encoder_norm": 3, "head": 3},
    "axial ResNet": {"root_conv": 0, "stage_1": 1, "stage_2": 2, "head": 3},
    "DeiT distilled": {"class_token": 0, "block_00": 1, "block_01": 2, "head": 3, "head_dist": 3},
    "Swin": {
        "patch_encoder": 0,
        "patch_norm": 0,
        "stage_1_block_00": 1,
        "stage_1_block_01": 2,
        "stage_1_downsample": 2,
        "stage_2_block_00": 3,
        "stage_2_block_01": 4,
        "encoder_norm": 5,
        "head": 5,
    },
    "BiT": {"root_conv": 0, "stage_1": 1, "stage_2": 2, "final_norm": 3, "head": 3},
}


@pytest.fixture(scope="module")
def models():
    return {name: family.build() for name, family in FAMILIES.items() if name in DEPTHS}


@pytest.mark.parametrize("name", DEPTHS)
def test_rates_fall_from_the_head_to_the_embedding(models, name):
    model, depths = models[name], DEPTHS[name]
    rates = layer_rates(model, 0.5)
    assert len(rates) == len(model.trainable_variables)
    found = {}
    for variable, rate in zip(model.trainable_variables, rates, strict=True):
        found.setdefault(variable.path.split("/")[0], set()).add(rate)
    last = max(depths.values())
    for layer, depth in depths.items():
        assert found[layer] == {0.5 ** (last - depth)}, layer


def test_units_of_a_resnet_count_one_by_one():
    config = keras_vit.BiTConfig(name="tiny", image_size=32, stage_sizes=(2, 1), width_factor=0.5, classes=3)
    model = keras_vit.BiTResNet(config)
    rates = dict(zip((v.path for v in model.trainable_variables), layer_rates(model, 0.5), strict=True))
    units = {tuple(path.split("/")[:2]): rate for path, rate in rates.items() if path.startswith("stage")}
    assert units == {("stage_1", "unit_01"): 0.125, ("stage_1", "unit_02"): 0.25, ("stage_2", "unit_01"): 0.5}


@pytest.mark.parametrize("name", DEPTHS)
def test_heads(models, name):
    expected = ["head", "head_dist"] if name == "DeiT distilled" else ["head"]
    assert sorted(head.name for head in head_layers(models[name])) == expected
    assert output_activation(models[name]) == "linear"


def test_heads_and_encoder_of_models_around_ours(models):
    inner, inputs = models["plain"], keras.Input((32, 32, 3))
    features = keras_vit.feature_extractor(inner, ["pooling"]).output
    beside = keras.Model(inner.input, keras.layers.Dense(2, activation="softmax", name="mine")(features))
    around = keras.Model(inputs, keras.layers.Softmax()(inner(inputs)))
    other = keras_vit.VisionTransformer(inner.config, name="other")
    twice = keras.Model(inputs, keras.layers.Add()([inner(inputs), other(inputs)]))
    assert [head.name for head in head_layers(beside)] == ["mine"] and output_activation(beside) == "softmax"
    assert [head.name for head in head_layers(around)] == ["head"] and output_activation(around) == "softmax"
    assert find_encoder(around) is inner and find_encoder(twice) is None
    with pytest.raises(ValueError, match="one keras_vit model; .* contains 2"):
        layer_rates(twice, 0.5)


def test_layers_around_ours_learn_at_the_full_rate(models):
    inner, inputs = models["plain"], keras.Input((32, 32, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2, name="mine")(inner(keras.layers.Conv2D(3, 1)(inputs))))
    rates = {v.path: rate for v, rate in zip(outer.trainable_variables, layer_rates(outer, 0.5), strict=True)}
    assert rates["mine/kernel"] == 1 and rates["block_00/mlp/dense1/kernel"] == 0.25
    assert np.unique(list(rates.values())).tolist() == [0.125, 0.25, 0.5, 1.0]


def test_a_model_that_is_not_functional_has_no_heads():
    assert head_layers(keras.Sequential([keras.layers.Dense(2)])) == []
