"""Attention and rollout against NumPy: softmax of the queries with the keys, block by block."""

import keras
import numpy as np
import pytest
from families import FAMILIES

import keras_vit
from keras_vit.analysis import attention_model, rollout_model

GLOBAL = ("plain", "registers", "hybrid", "DeiT distilled", "DeiT-III")


def pictures(count=3):
    return np.random.default_rng(0).uniform(-1, 1, (count, 32, 32, 3)).astype("float32")


def arrays(outputs):
    return [keras.ops.convert_to_numpy(output) for output in (outputs if isinstance(outputs, list) else [outputs])]


def by_hand(model, images):
    """The weights of a model whose blocks follow one another, from what enters each block."""
    entering = ["position_embs", "block_00"]
    for name, block in zip(entering, ("block_00", "block_01"), strict=True):
        tokens = arrays(keras.Model(model.input, model.get_layer(name).output)(images))[0].astype("float64")
        layer = model.get_layer(block)
        gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.norm1.gamma, layer.norm1.beta))
        centred = tokens - tokens.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.epsilon) * gamma + beta
        projection = layer.attention.query_key_value
        fused = normal @ keras.ops.convert_to_numpy(projection.kernel) + keras.ops.convert_to_numpy(projection.bias)
        query, key, _ = np.split(fused.reshape(*fused.shape[:2], 3, layer.attention.num_heads, -1), 3, axis=2)
        logits = np.einsum("bqhd,bkhd->bhqk", query[:, :, 0], key[:, :, 0]) / np.sqrt(query.shape[-1])
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        yield exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", ["plain", "DeiT distilled", "DeiT-III"])
def test_attention_is_that_of_the_equations(name):
    model = FAMILIES[name].build()
    for given, expected in zip(arrays(attention_model(model)(pictures())), by_hand(model, pictures()), strict=True):
        np.testing.assert_allclose(given, expected, atol=2e-6)


@pytest.mark.parametrize("name", GLOBAL)
def test_rollout(name):
    model = FAMILIES[name].build()
    images = pictures()
    weights = arrays(attention_model(model)(images))
    (maps,) = arrays(rollout_model(model)(images))
    tokens = 16 + model.config.num_prefix_tokens
    assert [block.shape for block in weights] == [(3, 3, tokens, tokens)] * 2
    for picture in range(3):
        product = np.eye(tokens)
        for block in weights:
            mixed = 0.5 * block[picture].astype("float64").mean(0) + 0.5 * np.eye(tokens)
            product = mixed @ product
        row = product[0] if model.config.num_class_tokens else product[model.config.num_prefix_tokens :].mean(0)
        np.testing.assert_allclose(maps[picture].ravel(), row[-16:], atol=1e-6)
    assert np.ptp(maps) > 1e-3


def test_rollout_of_a_rectangle_and_of_16_bits():
    model = keras_vit.resize(FAMILIES["plain"].build(), (24, 48))
    (maps,) = arrays(rollout_model(model)(np.zeros((2, 24, 48, 3), "float32")))
    assert maps.shape == (2, 3, 6)
    model = FAMILIES["plain"].build(dtype="mixed_bfloat16")
    (maps,) = arrays(rollout_model(model)(pictures()))
    assert maps.dtype == "float32" and np.isfinite(maps).all()


@pytest.mark.parametrize("name", ["axial", "Swin", "BiT"])
def test_a_model_without_global_attention_is_refused(name):
    with pytest.raises(ValueError, match="model must have blocks with global attention.*tiny has none"):
        attention_model(FAMILIES[name].build())


@pytest.mark.parametrize("build", [attention_model, rollout_model])
def test_another_model_is_refused(build):
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got str"):
        build("ViT-Ti_16")
