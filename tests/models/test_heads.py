"""with_head: the same model with a linear head of one's own."""

import keras
import numpy as np
import pytest
from families import FAMILIES
from faults import for_each

import keras_vit
from keras_vit.models import with_head

RNG = np.random.default_rng(0)
NAMES = ("ant", "bee", "cat")


def head(dim, classes=3):
    return RNG.normal(size=(dim, classes)), RNG.normal(size=classes)


def features_of(model, images):
    names = ["pooling", "pooling_dist"] if getattr(model.config, "distilled", False) else ["pooling"]
    outputs = [keras.Model(model.input, model.get_layer(name).output)(images) for name in names]
    return np.mean([keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in outputs], axis=0)


@pytest.mark.parametrize(
    ("family", "include_top"),
    [
        ("plain", False),
        ("DeiT distilled", True),
        *(
            pytest.param(family, top, marks=pytest.mark.slow)
            for family in FAMILIES
            for top in (True, False)
            if (family, top) not in (("plain", False), ("DeiT distilled", True))
        ),
    ],
)
def test_logits_are_those_of_the_head(family, include_top):
    model = FAMILIES[family].build(include_top=include_top)
    images = RNG.normal(size=(2, 32, 32, 3)).astype(np.float32)
    features = features_of(model, images)
    kernel, bias = head(features.shape[1])
    built = with_head(model, kernel, bias, NAMES)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(built(images)), features @ kernel + bias, atol=1e-4)
    expected = model.config.replace(include_top=True, classes=3)
    assert (type(built), built.config, built.labels, built.name) == (type(model), expected, NAMES, model.name)
    assert built.preprocessing == model.preprocessing


def test_nothing_is_shared(make_model, make_images, run):
    model = make_model()
    images = make_images(model)
    before = run(model, images)
    built = with_head(model, *head(16))
    for variable in built.weights:
        variable.assign(keras.ops.zeros(variable.shape))
    np.testing.assert_array_equal(run(model, images), before)
    assert built.labels is None


def test_frozen_layers_stay_frozen_but_not_the_head(make_model):
    model = make_model()
    keras_vit.freeze(model, "block_00")
    model.get_layer("head").trainable = False
    built = with_head(model, *head(16))
    assert not built.get_layer("block_00").trainable
    assert built.get_layer("block_01").trainable and built.get_layer("head").trainable


def test_lora_goes_with_the_weights_but_not_with_the_head(make_model, make_images, run):
    model = make_model()
    kernel, bias = head(16)
    for dense in (model.get_layer("block_01").mlp.dense1, model.get_layer("head")):
        dense.enable_lora(2)
        dense.lora_kernel_b.assign(RNG.normal(size=dense.lora_kernel_b.shape))
    images = make_images(model)
    built = with_head(model, kernel, bias)
    assert built.get_layer("block_01").mlp.dense1.lora_enabled and not built.get_layer("head").lora_enabled
    np.testing.assert_allclose(run(built, images), features_of(model, images) @ kernel + bias, atol=1e-4)


def test_quantised_layers_stay_quantised_but_not_the_head(make_model, make_images, run):
    model = make_model()
    for dense in (model.get_layer("block_00").mlp.dense1, model.get_layer("head")):
        dense.quantize("int8")
    kernel, bias = head(16)
    images = make_images(model)
    built = with_head(model, kernel, bias)
    assert built.get_layer("block_00").mlp.dense1.quantization_mode == "int8"
    assert built.get_layer("head").quantization_mode is None
    np.testing.assert_allclose(run(built, images), features_of(model, images) @ kernel + bias, atol=1e-4)


def test_another_activation_gives_way(make_model):
    assert with_head(make_model(classifier_activation="softmax"), *head(16)).config.classifier_activation is None


def test_another_preprocessing_is_noted(make_model):
    other = keras_vit.Preprocessing(size=20, crop=16)
    assert with_head(make_model(), *head(16), preprocessing=other).preprocessing == other


@for_each(
    ("changes", "arguments", "message"),
    [
        ({"pooling": "unpooled"}, head(16), "model must pool its tokens .* tiny has pooling='unpooled'"),
        ({}, head(12), r"kernel of the head must have shape \(16, 3\); got \(12, 3\)"),
        ({}, (*head(16), NAMES[:2]), "labels must name each of the 3 classes; got 2 names"),
    ],
)
def test_refusals(changes, arguments, message, make_model):
    with pytest.raises(ValueError, match=message):
        with_head(make_model(**changes), *arguments)
