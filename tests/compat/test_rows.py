"""on_rows: the same numbers, with the bias inside the product."""

import keras
import numpy as np
import pytest
from optimised_graphs import needs_onednn, optimised_operations

from keras_vit.compat.rows import on_rows

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

    traced = tf.function(lambda x: on_rows(dense, x), input_signature=[tf.TensorSpec(known)])
    np.testing.assert_allclose(traced(X), dense(X), rtol=1e-6)


@needs_onednn()
def test_the_bias_is_added_inside_the_product_and_by_keras_after_it(dense):
    x = X[0]
    assert optimised_operations(lambda x: on_rows(dense, x), x)["_FusedMatMul", "BiasAdd"] == 1
    assert optimised_operations(dense, x)["_FusedMatMul", "BiasAdd"] == 0
