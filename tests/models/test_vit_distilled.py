"""Distilled Vision Transformers (DeiT, arXiv 2012.12877): two tokens, two heads, one answer."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer


def numpy(values):
    return keras.ops.convert_to_numpy(values)


def test_inference_is_the_mean_of_the_two_logits(make_model, images):
    model = make_model(distilled=True)
    assert tuple(model.get_layer("class_token").class_token.shape) == (1, 2, 16)
    assert tuple(model.get_layer("position_embs").embedding.shape) == (1, 2 + 16, 16)
    outputs = [model.get_layer(name).output for name in ("encoder_norm", "head", "head_dist")]
    tokens, class_logits, dist_logits = keras.Model(model.input, outputs)(images)
    for index, (name, logits) in enumerate((("head", class_logits), ("head_dist", dist_logits))):
        kernel, bias = model.get_layer(name).get_weights()
        np.testing.assert_allclose(numpy(logits), numpy(tokens)[:, index] @ kernel + bias, atol=1e-5)
    np.testing.assert_allclose(numpy(model(images)), (numpy(class_logits) + numpy(dist_logits)) / 2, atol=1e-6)
    np.testing.assert_allclose(model.predict(images, verbose=0), numpy(model(images)), atol=1e-5)


def test_call_heads_returns_both_logits(make_model, images):
    model = make_model(distilled=True)
    both = model.call_heads(images, training=True)
    assert [tuple(logits.shape) for logits in both] == [(len(images), 5)] * 2
    for training in (False, True):  # the number of outputs of a call does not depend on it
        np.testing.assert_allclose(numpy(both[0] + both[1]) / 2, numpy(model(images, training=training)), atol=1e-6)
    assert np.abs(numpy(both[0]) - numpy(both[1])).max() > 1e-3


def test_fit_gives_each_head_half_the_loss(make_model, images):
    model = make_model(distilled=True)
    labels = np.arange(len(images)) % 5
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = np.mean([numpy(loss(labels, logits)) for logits in model.call_heads(images, training=True)])
    predicted = numpy(model(images)).argmax(axis=-1)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], run_eagerly=True)
    before = {name: model.get_layer(name).get_weights()[0] for name in ("head", "head_dist")}
    history = model.fit(images, labels, epochs=1, verbose=0).history
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    assert history["accuracy"][0] == pytest.approx((predicted == labels).mean())  # of the mean of the logits
    for name, kernel in before.items():
        assert np.abs(model.get_layer(name).get_weights()[0] - kernel).max() > 1e-4
    evaluated = model.evaluate(images, labels, verbose=0)
    assert evaluated[0] == pytest.approx(float(loss(labels, model(images))), rel=1e-5)


def test_both_tokens_are_dropped_out_and_stochastic_in_training(make_model, images):
    model = make_model(distilled=True, dropout_rate=0.5)
    first, second = (numpy(model.call_heads(images, training=True)[1]) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(numpy(model(images)), numpy(model(images)))


def test_without_a_head_the_features_are_the_mean_of_the_tokens(make_model, images):
    model = make_model(distilled=True, include_top=False)
    tokens = keras.Model(model.input, model.get_layer("encoder_norm").output)(images)
    np.testing.assert_allclose(numpy(model(images)), numpy(tokens)[:, :2].mean(axis=1), atol=1e-6)


def test_saved_and_loaded(make_model, images, tmp_path):
    model = make_model(distilled=True)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, VisionTransformer) and again.config == model.config
    for training in (False, True):
        heads = model.call_heads(images, training=training), again.call_heads(images, training=training)
        for ours, theirs in zip(*heads, strict=True):
            np.testing.assert_array_equal(numpy(ours), numpy(theirs))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_logits_are_float32(dtype, make_model, images):
    model = make_model(distilled=True, dtype=dtype)
    assert {keras.backend.standardize_dtype(x.dtype) for x in (model(images), *model.call_heads(images))} == {"float32"}


def test_inside_another_model_it_gives_the_mean_and_trains_both_heads(make_model, images):
    model = make_model(distilled=True)
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, keras.layers.Softmax()(model(inputs)))
    probabilities = numpy(keras.ops.softmax(model(images)))
    np.testing.assert_allclose(numpy(outer(images, training=True)), probabilities, atol=1e-6)
    before = {name: model.get_layer(name).get_weights()[0].copy() for name in ("head", "head_dist")}
    outer.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", run_eagerly=True)
    outer.fit(images, np.arange(len(images)) % 5, epochs=1, verbose=0)
    for name, kernel in before.items():
        assert np.abs(model.get_layer(name).get_weights()[0] - kernel).max() > 1e-5
