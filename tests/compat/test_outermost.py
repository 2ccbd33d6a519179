"""Whether a layer is called by itself or from inside another."""

import keras
import numpy as np

from keras_vit.compat.outermost import is_outermost


class Inner(keras.layers.Layer):
    def call(self, x):
        self.seen = is_outermost(self)
        return x


def test_a_layer_called_by_itself_is_the_outermost():
    inner = Inner()
    inner(np.ones((1, 2)))
    assert inner.seen is True
    inner(np.ones((1, 2)))  # and again, when the first call is over
    assert inner.seen is True


def test_a_layer_inside_a_model_is_not():
    inner = Inner()
    inputs = keras.Input((2,))
    model = keras.Model(inputs, inner(inputs))
    model(np.ones((1, 2)))
    assert inner.seen is False
    model.compile("sgd", "mse")
    model.predict(np.ones((1, 2)), verbose=0)
    assert inner.seen is False


def test_without_state_as_jax_trains():
    inner = Inner()
    inputs = keras.Input((2,))
    model = keras.Model(inputs, inner(inputs))
    for layer, is_outermost_there in ((inner, True), (model, False), (inner, True)):
        layer.stateless_call([], [], np.ones((1, 2), "float32"))
        assert inner.seen is is_outermost_there


def test_keras_still_drops_what_a_layer_gives_more_in_training():
    """The fault that this file is for; when this fails, delete it."""

    class Pair(keras.layers.Layer):
        def call(self, x, training=None):
            return (x, 2 * x) if training else x

    inputs = keras.Input((2,))
    model = keras.Model(inputs, Pair()(inputs))
    output = model(np.ones((1, 2)), training=True)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(output), np.ones((1, 2)))
