"""take_rows: rows of each sample, whole."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.forms import take_rows


@pytest.mark.parametrize("shape", [(), (4,), (4, 2)])
def test_rows_are_those_of_the_sample(shape):
    rng = np.random.default_rng(0)
    x, places = rng.normal(size=(3, 5, *shape)).astype("float32"), rng.integers(0, 5, (3, 7)).astype("int32")
    taken = ops.convert_to_numpy(take_rows(ops.convert_to_tensor(x), ops.convert_to_tensor(places)))
    for sample in range(3):
        np.testing.assert_array_equal(taken[sample], x[sample][places[sample]])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="what Keras does on TensorFlow")
def test_keras_still_takes_number_by_number():
    """When this test fails, look whether take_rows can give way to keras.ops.take_along_axis."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def taken(x, places):
        return ops.take_along_axis(x, places, axis=1)

    graph = taken.get_concrete_function(tf.zeros((2, 5, 4)), tf.zeros((2, 3, 1), "int32")).graph
    gathers = [op for op in graph.get_operations() if op.type == "GatherV2" and op.get_attr("batch_dims") == 1]
    assert [tuple(op.outputs[0].shape) for op in gathers] == [(8, 3)]  # 8 = 2 samples of 4 channels
