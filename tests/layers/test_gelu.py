"""gelu: Keras's numbers and gradients, in forms that are computed together with a product."""

import keras
import numpy as np
import pytest
from keras import ops
from optimised_graphs import needs_onednn, optimised_operations

from keras_vit.layers.forms import gelu

X = np.concatenate([np.linspace(-12, 12, 481), [-1e4, -100, 100, 1e4]]).astype("float32")
needs_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends take Keras's")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("approximate", [False, True])
def test_values(approximate, training):
    expected = ops.gelu(X.astype("float64"), approximate=approximate)
    outputs = gelu(ops.convert_to_tensor(X), approximate, training)
    np.testing.assert_allclose(ops.convert_to_numpy(outputs), expected, rtol=2e-6, atol=2e-6)


@needs_tensorflow
@pytest.mark.parametrize("approximate", [False, True])
def test_gradient_is_that_of_the_function(approximate):
    import tensorflow as tf

    x = tf.constant(X[:-4].astype("float64"))
    gradients = []
    for function in (lambda x: gelu(x, approximate, training=True), lambda x: ops.gelu(x, approximate=approximate)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        gradients.append(tape.gradient(y, x, output_gradients=tf.sin(x)))
    np.testing.assert_allclose(*gradients, rtol=1e-6, atol=1e-8)


@needs_tensorflow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("approximate", [False, True])
def test_wide_layers_are_compiled_in_training_and_give_the_same(approximate, dtype):
    import tensorflow as tf

    x = tf.cast(np.random.default_rng(0).normal(size=(3, 512)), dtype)

    @tf.function(autograph=False)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(x, approximate, training=True)
        return y, tape.gradient(y, x, output_gradients=x)

    calls = [operation.type for operation in both.get_concrete_function(x).graph.get_operations()]
    assert calls.count("PartitionedCall") + calls.count("StatefulPartitionedCall") == 2
    tf.config.run_functions_eagerly(True)
    try:
        expected = both(tf.cast(x, "float32"))
    finally:
        tf.config.run_functions_eagerly(False)
    for output, value in zip(both(x), expected, strict=True):
        assert output.dtype == dtype
        np.testing.assert_allclose(tf.cast(output, "float32"), value, atol=5e-6 if dtype == "float32" else 0.02)


@needs_tensorflow
@pytest.mark.parametrize("approximate", [False, True])
def test_gradient_is_finite_far_from_zero(approximate):
    import tensorflow as tf

    x = tf.constant(X[-4:])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x, approximate, training=True)
    np.testing.assert_array_equal(tape.gradient(y, x), [0, 0, 1, 1])


@needs_onednn()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("approximate", "name"), [(True, "GeluApproximate"), (False, "GeluExact")])
def test_inference_is_fused_with_the_product_and_the_tanh_of_keras_is_not(approximate, name, dtype):
    layer = keras.layers.Dense(32, dtype=dtype)
    layer.build((None, 64))
    x = np.ones((16, 64), "float32")
    ours = optimised_operations(lambda x: gelu(layer(x), approximate), x)
    assert ours["_FusedMatMul", "BiasAdd", name] == 1
    theirs = optimised_operations(lambda x: ops.gelu(layer(x), approximate=approximate), x)
    assert theirs["_FusedMatMul", "BiasAdd", name] == (0 if approximate else 1)
