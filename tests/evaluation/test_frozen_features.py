"""FrozenFeatures: which vector stands for an image, for every kind of model."""

import functools
import types

import keras
import numpy as np
import pytest
from families import FAMILIES

from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.evaluation.linear_probe import FrozenFeatures
from keras_vit.evaluation.outputs import check_preprocessing
from keras_vit.models.derived import of_pixels

SIZES = {"image_size": 16, "patch_size": 8, "hidden_dim": 12, "num_layers": 2, "num_heads": 2, "mlp_dim": 16}
IMAGES = np.random.default_rng(0).normal(size=(5, 16, 16, 3)).astype(np.float32)
LABELS = np.arange(5)


@functools.cache
def tiny(**changes):
    return VisionTransformer(ViTConfig(name="tiny", classes=3, **{**SIZES, **changes}))


def read(frozen, images=IMAGES):
    return frozen.read(opened([(images, LABELS)]), verbose=False)[0]


def opened(batches):
    return types.SimpleNamespace(batches=lambda positions: (batches, len(batches)))


def output_of(model, name, images=IMAGES):
    outputs = keras.Model(model.input, model.get_layer(name).output)(images)
    return keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"representation_size": 7}, "pre_logits"),
        pytest.param({"pooling": "map"}, "pooling", marks=pytest.mark.slow),
        ({"pooling": "gap", "norm_position": "after_pooling"}, "encoder_norm"),
        ({"include_top": False}, "pooling"),
        pytest.param({"include_top": False, "representation_size": 7}, "pre_logits", marks=pytest.mark.slow),
        ({"dtype": "mixed_bfloat16"}, "pooling"),
    ],
)
def test_default_is_what_the_head_reads(changes, layer):
    model = tiny(**changes)
    frozen = FrozenFeatures(model)
    assert frozen.layer == layer
    found = read(frozen)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, output_of(model, layer), atol=1e-6)


@pytest.mark.parametrize("include_top", [True, False])
def test_of_a_distilled_model_it_is_the_mean_of_both_tokens(include_top):
    model = tiny(distilled=True, include_top=include_top)
    frozen = FrozenFeatures(model)
    assert frozen.layer == "pooling, pooling_dist"
    expected = (output_of(model, "pooling") + output_of(model, "pooling_dist")) / 2
    np.testing.assert_allclose(read(frozen), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["unpooled", "token_unpooled"])
def test_of_an_unpooled_model_it_is_the_mean_of_the_patches(pooling):
    model = tiny(pooling=pooling, num_registers=2)
    prefix = model.config.num_prefix_tokens
    expected = output_of(model, "encoder_norm")[:, prefix:].mean(axis=1)
    np.testing.assert_allclose(read(FrozenFeatures(model)), expected, atol=1e-6)


def test_of_a_block_it_is_the_mean_of_the_patches():
    model = tiny(num_registers=2)
    frozen = FrozenFeatures(model, "block_00")
    assert frozen.layer == "block_00"
    np.testing.assert_allclose(read(frozen), output_of(model, "block_00")[:, 3:].mean(axis=1), atol=1e-6)


@pytest.mark.parametrize(
    "family",
    [
        "hybrid on a CNN",
        "Swin",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("hybrid", "axial", "axial ResNet", "BiT")),
    ],
)
def test_other_families(family):
    model = FAMILIES[family].build()
    images = np.random.default_rng(1).normal(size=(5, 32, 32, 3)).astype(np.float32)
    assert FrozenFeatures(model).layer == "pooling"
    name = next(name for name in FAMILIES[family].maps if name.endswith(("stage_1", "block_00")))
    maps = output_of(model, name, images)
    expected = maps.mean(axis=(1, 2)) if maps.ndim == 4 else maps[:, model.config.num_prefix_tokens :].mean(axis=1)
    np.testing.assert_allclose(read(FrozenFeatures(model, name), images), expected, atol=1e-4, rtol=1e-4)


def test_of_a_model_around_one_it_is_that_one():
    model = tiny()
    inside = keras.Input((20, 20, 3))
    cropped = keras.layers.CenterCrop(16, 16)(inside)
    for wrapper in (of_pixels(model), keras.Model(inside, keras.layers.Dense(4)(model(cropped)))):
        frozen = FrozenFeatures(wrapper)
        assert (frozen.model, frozen.layer) == (model, "pooling")
        assert check_preprocessing(frozen.model, None) == model.preprocessing


def test_of_a_model_of_another_package_it_is_the_output():
    inputs = keras.Input((16, 16, 3))
    maps = keras.layers.Conv2D(4, 3, name="maps")(inputs)
    other = keras.Model(inputs, keras.layers.Flatten(name="flat")(maps), name="other")
    assert FrozenFeatures(other).layer == "output"
    np.testing.assert_allclose(read(FrozenFeatures(other)), keras.ops.convert_to_numpy(other(IMAGES)), atol=1e-6)
    expected = output_of(other, "maps").mean(axis=(1, 2))
    np.testing.assert_allclose(read(FrozenFeatures(other, "maps")), expected, atol=1e-6)
    sequential = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten()])
    np.testing.assert_array_equal(read(FrozenFeatures(sequential)), IMAGES.reshape(5, -1))
    with pytest.raises(ValueError, match="preprocessing must be given, as other has none"):
        check_preprocessing(other, None)
    grey = Preprocessing(size=16, mean=(0.5,), std=(0.5,))
    with pytest.raises(ValueError, match=r"images of \(16, 16, 3\); got \(16, 16, 1\)"):
        check_preprocessing(other, grey)


def test_batches_are_joined_with_their_labels(capsys):
    batches = [(IMAGES[:3], LABELS[:3]), (IMAGES[3:], LABELS[3:])]
    found, labels = FrozenFeatures(tiny()).read(opened(batches), verbose=True)
    assert found.shape == (5, 12) and labels.tolist() == LABELS.tolist()
    shown = capsys.readouterr().out
    assert "2/2" in shown and shown.endswith("\n")


def test_refusals():
    model = tiny()
    other = VisionTransformer(model.config, name="other")
    both = keras.Model(model.input, keras.layers.Add()([model(model.input), other(model.input)]))
    relative = tiny(position_embedding="relative", position_placement="shared")
    pair = [keras.Input((3,)), keras.Input((3,))]
    refused = [
        ("ViT-B_16", None, TypeError, "model must be a keras model, .*; got str"),
        (both, None, ValueError, "has 'tiny', 'other': pass one of them"),
        (model, "block_5", ValueError, "must be layers of the model, among .*; got 'block_5'"),
        (relative, "relative_positions", ValueError, r"one vector or map per image; got an output of shape \("),
        (keras.Model(pair, keras.layers.Add()(pair)), None, ValueError, "one input and one output; got"),
        (
            keras.Sequential([keras.Input((3,)), keras.layers.ReLU()]),
            "x",
            ValueError,
            "one of .*'x'",
        ),
    ]
    for given, layer, error, message in refused:
        with pytest.raises(error, match=message):
            print(message, FrozenFeatures(given, layer))  # shown where nothing is raised
    other.get_layer("encoder_norm").beta.assign(np.full(12, np.nan))
    with pytest.raises(ValueError, match="features of pooling; other returns NaN or infinity for some images"):
        read(FrozenFeatures(other))
