"""The activation at the end of models of every make; tests/training/test_encoders.py has the families."""

import keras
import pytest
from keras import ops

from keras_vit.models.encoders import output_activation


def dense(activation=None):
    return keras.layers.Dense(3, activation)


@pytest.mark.parametrize("activation", ["linear", "softmax", "sigmoid", "relu"])
def test_of_the_last_layer(activation):
    inputs = keras.Input((2,))
    functional = keras.Model(inputs, dense(activation)(inputs))
    assert output_activation(functional) == activation
    assert output_activation(keras.Sequential([dense(), dense(activation)])) == activation
    assert output_activation(keras.Model(inputs, functional(inputs))) == activation
    assert output_activation(keras.Sequential([functional])) == activation
    assert output_activation(keras.Model(inputs, keras.layers.Activation(activation)(dense()(inputs)))) == activation


def test_of_layers_and_operations_that_are_activations():
    inputs = keras.Input((2,))
    assert output_activation(keras.Model(inputs, keras.layers.Softmax()(dense()(inputs)))) == "softmax"
    assert output_activation(keras.Model(inputs, ops.softmax(dense()(inputs)))) == "softmax"
    assert output_activation(keras.Model(inputs, ops.sigmoid(dense()(inputs)))) == "sigmoid"


def test_a_model_that_cannot_tell_is_taken_to_give_logits():
    class Mine(keras.Model):
        def call(self, inputs):
            return inputs

    assert output_activation(Mine()) == "linear" and output_activation(keras.Sequential()) == "linear"
