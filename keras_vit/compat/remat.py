"""Recomputation of a layer in the backward pass, with the random numbers of the forward pass.

`keras.RematScope` (3.15) has three problems: it raises an error inside `fit` and `predict` (keras-team/keras issue
21207), it recomputes every sub-layer once more during the recomputation, and it draws new dropout masks, so the
gradient is wrong. Delete this file when tests/compat/test_remat.py finds that Keras has fixed them.
"""

import keras
from keras import ops

_RESERVED_DRAWS = 64  # more than a layer draws from one seed generator per call


def recompute(layer, call, *inputs):
    """Return `call(*inputs)`; only the inputs are stored for the backward pass.

    Args:
        layer: a built layer.
        call: function of tensors that reads no other tensors than the variables of `layer`.
        *inputs: the tensors.
    """
    weights, states = layer.weights, _seed_states(layer)
    seeds = [ops.copy(state) for state in states]

    def forward(*arguments):
        values = arguments[len(inputs) :]
        # Values are arguments, so that gradients flow to them; the seeds are those before the call.
        mapping = zip([*weights, *states], [*values, *seeds], strict=True)
        with keras.StatelessScope(state_mapping=mapping):
            return call(*arguments[: len(inputs)])

    # Copies, because TensorFlow also watches the variables and would count their gradients twice.
    outputs = keras.remat(forward)(*inputs, *(ops.copy(weight) for weight in weights))
    for state, seed in zip(states, seeds, strict=True):
        state.assign(seed + ops.convert_to_tensor([0, _RESERVED_DRAWS], dtype=seed.dtype))
    return outputs


def _seed_states(layer):
    weights = {id(weight) for weight in layer.weights}
    return [variable for variable in layer.variables if id(variable) not in weights]
