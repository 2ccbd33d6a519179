"""Recomputing a layer in the backward pass, with the random numbers of the forward pass.

`keras.RematScope` (3.15) cannot be used for it: inside `fit` and `predict` it raises (keras-team/keras issue
21207), it recomputes every sub-layer once more inside the recomputation, and it draws new dropout masks, so
that the gradient is that of another network. Delete this file when tests/compat/test_remat.py finds that
Keras has mended it.
"""

import keras
from keras import ops

_RESERVED_DRAWS = 64  # more than a layer draws from one seed generator in one call


def recompute(layer, call, *inputs):
    """Returns `call(*inputs)`, of which only the inputs are kept for the backward pass.

    Args:
        layer: a built layer.
        call: function of tensors that reads no other tensors but the variables of `layer`.
        *inputs: the tensors.
    """
    weights, states = layer.weights, _seed_states(layer)
    seeds = [ops.copy(state) for state in states]

    def forward(*arguments):
        values = arguments[len(inputs) :]
        # The values are arguments, so that gradients flow to them; the seeds are those of before the call.
        mapping = zip([*weights, *states], [*values, *seeds], strict=True)
        with keras.StatelessScope(state_mapping=mapping):
            return call(*arguments[: len(inputs)])

    # Copies, for TensorFlow would watch a variable by itself and count its gradient twice.
    outputs = keras.remat(forward)(*inputs, *(ops.copy(weight) for weight in weights))
    for state, seed in zip(states, seeds, strict=True):
        state.assign(seed + ops.convert_to_tensor([0, _RESERVED_DRAWS], dtype=seed.dtype))
    return outputs


def _seed_states(layer):
    weights = {id(weight) for weight in layer.weights}
    return [variable for variable in layer.variables if id(variable) not in weights]
