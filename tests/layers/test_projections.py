"""Dense layers on rows and in parts: the same numbers, with the bias inside the product."""

import keras
import numpy as np
import pytest
from optimised_graphs import needs_onednn, optimised_operations

from keras_vit.layers.forms import CONVERTER, on_rows, project, project_to_heads, written_for

X = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")


@pytest.fixture
def dense():
    layer = keras.layers.Dense(6, bias_initializer="normal")
    layer.build((None, 4))
    return layer


@pytest.mark.parametrize("shape", [(30, 4), (6, 5, 4), (2, 3, 5, 4)])
def test_rows_of_any_rank(dense, shape):
    x = X.reshape(shape)
    outputs = on_rows(dense, keras.ops.convert_to_tensor(x))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(outputs), dense(x), rtol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="has shapes that are not known")
@pytest.mark.parametrize("known", [(None, 3, 5, 4), (2, None, 5, 4), (None, None, 5, 4), (None, None, None, 4)])
def test_sizes_that_are_not_known(dense, known):
    import tensorflow as tf

    traced = tf.function(lambda x: on_rows(dense, x), input_signature=[tf.TensorSpec(known)], autograph=False)
    np.testing.assert_allclose(traced(X), dense(X), rtol=1e-6)


@needs_onednn()
def test_the_bias_is_added_inside_the_product_and_by_keras_after_it(dense):
    x = X[0]
    assert optimised_operations(lambda x: on_rows(dense, x), x)["_FusedMatMul", "BiasAdd"] == 1
    assert optimised_operations(dense, x)["_FusedMatMul", "BiasAdd"] == 0


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("reader", [None, CONVERTER])
def test_parts_and_heads(reader, use_bias):
    layer, x = keras.layers.Dense(24, use_bias=use_bias, bias_initializer="normal"), X[0]
    layer.build(x.shape)
    with written_for(reader):
        query, key, value = project_to_heads(layer, keras.ops.convert_to_tensor(x), num_heads=4)
        whole = project(layer, keras.ops.convert_to_tensor(x))
    expected = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-6)
    for part, output in enumerate((query, key, value)):
        heads = expected[..., 8 * part : 8 * part + 8].reshape(3, 5, 4, 2).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(output, heads, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="is exported from TensorFlow")
def test_converters_get_a_product_for_each_part():
    import tensorflow as tf

    layer = keras.layers.Dense(24)
    layer.build(X[0].shape)
    with written_for(CONVERTER):
        traced = tf.function(lambda x: project_to_heads(layer, x, 4), autograph=False).get_concrete_function(
            tf.TensorSpec((None, 5, 4))
        )
    kinds = [operation.type for operation in traced.graph.get_operations()]
    assert sum("MatMul" in kind for kind in kinds) == 3
    assert not {"Split", "SplitV", "Unpack"} & set(kinds)


@pytest.mark.slow
def test_a_quantised_layer_multiplies_as_it_does():
    layer = keras.layers.Dense(24)
    layer.build(X[0].shape)
    layer.quantize("int8")
    with written_for(CONVERTER):
        outputs = project(layer, keras.ops.convert_to_tensor(X[0]))
    np.testing.assert_allclose(outputs, layer(X[0]), rtol=1e-5, atol=1e-6)
