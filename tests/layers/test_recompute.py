"""recompute: the gradient of the very pass that was made, at the price of a second forward pass."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.forms import recompute

needs_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="traces with tf.function")


@keras.saving.register_keras_serializable(package="test_remat")
class Noisy(keras.layers.Layer):
    """x -> dropout(x * scale) with or without recomputation; counts its runs."""

    def __init__(self, is_recomputed, seed=3):
        super().__init__()
        self.is_recomputed = is_recomputed
        self.dropout = keras.layers.Dropout(0.5, seed=seed)
        self.runs = 0

    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(input_shape[-1],), initializer="ones")

    def call(self, x):
        return recompute([self], self._run, x) if self.is_recomputed else self._run(x)

    def _run(self, x):
        self.runs += 1
        return self.dropout(ops.multiply(x, self.scale), training=True)

    def compute_output_shape(self, input_shape):
        return input_shape


def test_gradient_uses_the_dropout_masks_of_the_forward_pass():
    x = np.random.default_rng(0).uniform(1, 2, size=(16, 4)).astype("float32")
    layer = Noisy(is_recomputed=True)
    layer.build(x.shape)
    for _ in range(3):
        output, gradient = _gradient(layer, x)
        # The output is linear in scale, whose values are one: the gradient of its sum is its column sums.
        np.testing.assert_allclose(gradient, output.sum(axis=0), rtol=1e-5)


def test_first_pass_equals_that_without_recomputation():
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    pairs = []
    for is_recomputed in (False, True):
        layer = Noisy(is_recomputed)
        layer.build(x.shape)
        pairs.append(_gradient(layer, x))
    np.testing.assert_array_equal(pairs[0][0], pairs[1][0])
    np.testing.assert_allclose(pairs[0][1], pairs[1][1], rtol=1e-5)


def test_every_call_draws_new_masks():
    x = np.ones((16, 4), "float32")
    layer = Noisy(is_recomputed=True)
    outputs = [ops.convert_to_numpy(layer(x)) for _ in range(4)]
    for index, output in enumerate(outputs):
        assert all((output != other).any() for other in outputs[:index])


@needs_tensorflow
@pytest.mark.parametrize(("is_recomputed", "runs"), [(False, 1), (True, 2)])
def test_forward_pass_runs_again_for_the_gradient(is_recomputed, runs):
    layer, x = Noisy(is_recomputed), np.ones((2, 4), "float32")
    layer.build(x.shape)
    _gradient(layer, x)
    assert layer.runs == runs


@needs_tensorflow
def test_compiled_gradient_uses_the_dropout_masks_of_the_forward_pass():
    import tensorflow as tf

    x = np.random.default_rng(0).uniform(1, 2, size=(16, 4)).astype("float32")
    layer = Noisy(is_recomputed=True)
    layer.build(x.shape)
    compiled = tf.function(lambda: _gradient_tensorflow(layer, x))
    sums = set()
    for _ in range(3):
        output, gradient = compiled()
        np.testing.assert_allclose(gradient, ops.sum(output, axis=0), rtol=1e-5)
        sums.add(float(ops.sum(output)))
    assert len(sums) == 3


@needs_tensorflow
def test_keras_remat_scope_still_fails_inside_a_compiled_function():
    """When this test fails, look whether recompute can give way to keras.RematScope."""
    import tensorflow as tf

    with keras.RematScope("full"):
        layer = keras.layers.Dropout(0.5)
    with pytest.raises(ValueError, match="supports keywords arguments only when eager execution is enabled"):
        tf.function(lambda x: layer(x, training=True))(tf.ones((2, 3)))


def _gradient(layer, x):
    """(output, gradient of its sum for the scale) as arrays."""
    if keras.backend.backend() == "tensorflow":
        return [value.numpy() for value in _gradient_tensorflow(layer, x)]
    return _gradient_jax(layer, x)


def _gradient_tensorflow(layer, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        output = layer(x)
    return output, tape.gradient(output, layer.scale.value)


def _gradient_jax(layer, x):
    import jax

    def total(weights, others):
        output, others = layer.stateless_call(weights, others, x)
        return ops.sum(output), (output, others)

    others = [variable.value for variable in layer.non_trainable_variables]
    (_, (output, others)), gradient = jax.value_and_grad(total, has_aux=True)([layer.scale.value], others)
    for variable, value in zip(layer.non_trainable_variables, others, strict=True):
        variable.assign(value)
    return np.asarray(output), np.asarray(gradient[0])
