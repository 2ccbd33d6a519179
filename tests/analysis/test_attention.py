"""Attention weights against NumPy: softmax of the queries with the keys, block by block, of models in every guise."""

import keras
import numpy as np
import pytest
from families import FAMILIES, built
from faults import for_each

import keras_vit
from keras_vit.analysis import attention_model, attention_rollout, attention_weights, mean_attention_distance
from keras_vit.analysis.attention import attention_batches

GLOBAL = ("plain", "registers", "hybrid", "DeiT distilled", "DeiT-III")


def make_images(count=3, size=(32, 32)):
    return np.random.default_rng(0).uniform(-1, 1, (count, *size, 3)).astype("float32")


def by_hand(model, images):
    """The weights of a model whose blocks follow one another, from what enters each block."""
    entering = ["position_embs", "block_00"]
    for name, block in zip(entering, ("block_00", "block_01"), strict=True):
        tokens = keras.Model(model.input, model.get_layer(name).output)(images)
        tokens = keras.ops.convert_to_numpy(tokens).astype("float64")
        layer = model.get_layer(block)
        gamma, beta = (keras.ops.convert_to_numpy(weight) for weight in (layer.norm1.gamma, layer.norm1.beta))
        centred = tokens - tokens.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.epsilon) * gamma + beta
        projection = layer.attention.qkv
        fused = normal @ keras.ops.convert_to_numpy(projection.kernel) + keras.ops.convert_to_numpy(projection.bias)
        query, key, _ = np.split(fused.reshape(*fused.shape[:2], 3, layer.attention.num_heads, -1), 3, axis=2)
        logits = np.einsum("bqhd,bkhd->bhqk", query[:, :, 0], key[:, :, 0]) / np.sqrt(query.shape[-1])
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        yield exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", ["plain", pytest.param("DeiT distilled", marks=pytest.mark.slow), "DeiT-III"])
def test_attention_is_that_of_the_equations(name):
    model = built(name)
    expected = list(by_hand(model, make_images()))
    for given, block in zip(attention_weights(model, make_images()), expected, strict=True):
        np.testing.assert_allclose(given, block, atol=2e-6)
    for given, block in zip(attention_model(model)(make_images()), expected, strict=True):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(given), block, atol=2e-6)


@pytest.mark.parametrize("name", GLOBAL)
def test_shapes_and_sums(name):
    model = built(name)
    tokens = 16 + model.config.num_prefix_tokens
    weights = attention_weights(model, make_images())
    assert [block.shape for block in weights] == [(3, 3, tokens, tokens)] * 2
    for block in weights:
        assert block.dtype == "float32"
        np.testing.assert_allclose(block.sum(-1), 1, atol=1e-5)


def test_blocks_with_windows_have_groups_and_global_ones_none():
    """A grid of 4 x 4 in windows of 3 x 3, padded to 6 x 6."""
    model = built("SAM")
    weights = attention_weights(model, make_images())
    assert [block.shape for block in weights] == [(3, 4, 3, 9, 9), (3, 3, 16, 16)]
    for block in weights:
        np.testing.assert_allclose(block.sum(-1), 1, atol=1e-5)
    (windows, whole), _ = next(iter(attention_batches(model, make_images())))
    expected = [[0, 1, 2, 4, 5, 6, 8, 9, 10], [3, -1, -1, 7, -1, -1, 11, -1, -1]]
    expected += [[12, 13, 14, -1, -1, -1, -1, -1, -1], [15] + [-1] * 8]
    np.testing.assert_array_equal(windows.places, expected)
    np.testing.assert_array_equal(whole.places, [range(16)])
    assert attention_rollout(model, make_images()).shape == (3, 4, 4)


def test_batches_give_what_one_gives():
    model = built("plain")
    whole, cut = (attention_weights(model, make_images(5), batch_size=size) for size in (8, 2))
    for block, parts in zip(whole, cut, strict=True):
        np.testing.assert_allclose(parts, block, atol=1e-6)


def test_layers_by_name_and_by_number():
    model = built("plain")
    first, second = attention_weights(model, make_images())
    for layers, expected in {
        "block_01": [second],
        -1: [second],
        np.int64(1): [second],
        ("block_01", 0): [second, first],
    }.items():
        found = attention_weights(model, make_images(), layers)
        assert len(found) == len(expected)
        for block, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(block, wanted, atol=1e-6)


def test_groups_of_an_axial_model():
    model = FAMILIES["axial"].build(image_size=(24, 32))
    shapes = {
        "block_00/row_block": (3, 3, 3, 4, 4),
        "block_00/column_block": (3, 4, 3, 3, 3),
        "block_01/row_block": (3, 3, 3, 4, 4),
        "block_01/column_block": (3, 4, 3, 3, 3),
    }
    weights = attention_weights(model, make_images(size=(24, 32)), list(shapes))
    assert [block.shape for block in weights] == list(shapes.values())
    tokens = keras.Model(model.input, model.get_layer("position_embs").output)(make_images(size=(24, 32)))
    rows, columns = model.get_layer("block_00").attention_scores(tokens)
    np.testing.assert_allclose(weights[0], keras.ops.convert_to_numpy(rows), atol=1e-6)
    np.testing.assert_allclose(weights[1], keras.ops.convert_to_numpy(columns), atol=1e-6)


def test_windows_of_a_swin():
    model = built("Swin")
    weights = attention_weights(model, make_images())
    assert [block.shape for block in weights] == [(3, 16, 2, 16, 16)] * 2 + [(3, 4, 4, 16, 16)] * 2
    maps = keras.Model(model.input, model.get_layer("stage_1_block_00").output)(make_images())
    expected = model.get_layer("stage_1_block_01").attention_scores(maps)
    np.testing.assert_allclose(weights[1], keras.ops.convert_to_numpy(expected), atol=1e-6)


def _rescaled(model):
    inputs = keras.Input((32, 32, 3))
    return keras_vit.Model(inputs, keras.layers.Softmax()(model(keras.layers.Rescaling(1.0)(inputs))))


def _in_a_sequential(model):
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Rescaling(1.0), model])


def _with_a_new_head(model):
    return keras_vit.Model(model.input, keras.layers.Dense(2)(model.get_layer("pooling").output))


def _wrapped_twice(model):
    inner = _rescaled(model)
    inputs = keras.Input((32, 32, 3))
    return keras.Model(inputs, inner(inputs))


class _Subclass(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.encoder = model

    def call(self, images):
        return self.encoder(images)


def _saved(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras", compile=False)


GUISES = {
    "around": _rescaled,
    "sequential": _in_a_sequential,
    "new head": _with_a_new_head,
    "twice": _wrapped_twice,
    "subclass": _Subclass,
    "masked patches": keras_vit.MaskedPatchPrediction,
    "distiller": lambda model: keras_vit.Distiller(model, keras_vit.clone(model)),
}


@pytest.mark.parametrize("guise", GUISES)
@pytest.mark.parametrize("name", ["plain", pytest.param("axial", marks=pytest.mark.slow)])
def test_a_model_in_another_is_found(name, guise):
    model = built(name)
    around = GUISES[guise](model)
    assert type(around) is not type(model)
    for given, expected in zip(
        attention_weights(around, make_images()), attention_weights(model, make_images()), strict=True
    ):
        np.testing.assert_allclose(given, expected, atol=1e-6)


def test_what_follows_from_attention_is_that_of_the_model_inside():
    model = built("hybrid")
    around, images = _rescaled(model), {"images": make_images()}
    np.testing.assert_allclose(attention_rollout(around, **images), attention_rollout(model, **images), atol=1e-6)
    distances = mean_attention_distance(model, **images)
    np.testing.assert_allclose(mean_attention_distance(around, **images), distances, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda model: model, _rescaled])
def test_a_model_from_a_file_is_the_same(tmp_path, wrap):
    model = wrap(built("plain"))
    again = _saved(model, tmp_path)
    for given, expected in zip(
        attention_weights(again, make_images()), attention_weights(model, make_images()), strict=True
    ):
        np.testing.assert_allclose(given, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", *(pytest.param(n, marks=pytest.mark.slow) for n in ("Swin", "axial"))])
def test_16_bits_are_near(name):
    model = built(name)
    halved = keras_vit.models.with_dtype(model, "mixed_bfloat16")
    exact = attention_weights(model, make_images())
    for given, expected in zip(attention_weights(halved, make_images()), exact, strict=True):
        assert given.dtype == "float32" and 0 < np.abs(given - expected).max() < 0.1
    assert np.isfinite(attention_rollout(halved, make_images(), layers=-1)).all()


def test_a_model_of_layers_of_ones_own():
    inputs = keras.Input((16, 24, 3))
    tokens = keras_vit.PatchEncoder(8, 8)(inputs)
    tokens = keras_vit.AddPositionEmbs(grid_size=(2, 3))(keras_vit.ClassToken()(tokens))
    tokens = keras_vit.TransformerBlock(2, 16, name="mine")(tokens)
    model = keras.Model(inputs, keras.layers.Dense(2)(tokens[:, 0]))
    (weights,) = attention_weights(model, make_images(2, (16, 24)), "mine")
    assert weights.shape == (2, 2, 7, 7)
    assert attention_rollout(model, make_images(2, (16, 24))).shape == (2, 2, 3)
    assert mean_attention_distance(model, make_images(2, (16, 24))).shape == (1, 2)


@pytest.mark.parametrize("name", ["BiT", "axial ResNet"])
def test_a_model_without_blocks_is_refused(name):
    with pytest.raises(ValueError, match="model must have transformer blocks .*; tiny\\w* has none"):
        attention_weights(built(name), make_images())


def test_blocks_that_see_no_images_are_refused():
    tokens = keras.Input((16, 8))
    blocks = keras.Model(tokens, keras_vit.TransformerBlock(2, 16, name="mine")(tokens))
    with pytest.raises(ValueError, match="images of a known size as input; that of mine has not"):
        attention_weights(blocks, make_images())


def test_two_inputs_are_refused():
    inputs, other = keras.Input((32, 32, 3)), keras.Input((4,))
    model = keras.Model([inputs, other], keras.layers.Concatenate()([built("plain")(inputs), other]))
    with pytest.raises(ValueError, match="images as its one input; .* has 2 inputs"):
        attention_weights(model, make_images())


def test_two_models_in_one_are_refused():
    inputs = keras.Input((32, 32, 3))
    two = [keras_vit.VisionTransformer(FAMILIES[name].config, name=name) for name in ("plain", "axial")]
    both = keras.Model(inputs, keras.layers.Average()([model(inputs) for model in two]), name="both")
    with pytest.raises(ValueError, match="both has 2"):
        attention_weights(both, make_images())


@for_each(
    ("arguments", "error", "message"),
    [
        ({"model": "ViT-Ti_16"}, TypeError, "model must be a keras model; got str"),
        ({"layers": "block_07"}, ValueError, "layers must be one of 'block_00', 'block_01'; got layers='block_07'"),
        ({"layers": 2}, ValueError, r"numbers of the 2 blocks \['block_00', 'block_01'\]; got 2"),
        ({"layers": [True]}, ValueError, "layers must be names or numbers .* got True"),
        ({"layers": []}, ValueError, "layers must contain at least one block"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1; got batch_size=0"),
        (
            {"images": np.zeros((32, 32, 3), "float32")},
            ValueError,
            r"\(images, 32, 32, 3\), .* of shape \(32, 32, 3\)",
        ),
        ({"images": np.zeros((1, 24, 32, 3), "float32")}, ValueError, r"of shape \(1, 24, 32, 3\)"),
        ({"images": np.zeros((0, 32, 32, 3), "float32")}, ValueError, r"of shape \(0, 32, 32, 3\)"),
        ({"images": np.zeros((1, 32, 32, 3), "uint8")}, ValueError, "images must be a float array .* got uint8"),
        ({"images": np.full((1, 32, 32, 3), np.nan, "float32")}, ValueError, "is NaN or infinite"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        attention_weights(**{"model": built("plain"), "images": make_images(), **arguments})
