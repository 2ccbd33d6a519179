"""Gradients of a loss by Keras variables, on both backends."""

import keras
from keras import ops


def gradients_of(loss_of, variables):
    """The gradients of `loss_of()` by variables."""
    if keras.backend.backend() == "jax":
        import jax

        def stateless(values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return loss_of()

        return [ops.convert_to_numpy(one) for one in jax.grad(stateless)([variable.value for variable in variables])]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = loss_of()
    found = tape.gradient(loss, [one.value for one in variables])
    return [ops.convert_to_numpy(tf.convert_to_tensor(gradient)) for gradient in found]
