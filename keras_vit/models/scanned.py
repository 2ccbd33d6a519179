"""Run equal blocks as one loop, which a compiler translates once (`scan_layers`)."""

import keras
from keras import ops


def check_unscanned(model):
    """Raise `ValueError` for a model with `scan_layers`, which acts only where the model itself is called."""
    if model.config.field("scan_layers"):
        raise ValueError(f"scan_layers must be False where layers are called one by one; it is True in {model.name}")


def scanned_call(inputs, start, positions, blocks, end, outputs):
    """Return a function of a model's inputs that gives its outputs and runs the blocks as one loop.

    The variables of the blocks stay as they are: inside the call, those with the same place in each block are stacked.

    Args:
        inputs: symbolic inputs of the model.
        start: symbolic input of the first block.
        positions: dict of what every block gets besides.
        blocks: the layers.
        end, outputs: symbolic outputs of the last block and of the model.

    Raises:
        ValueError: if the backend is not JAX; in the call, if the variables of the blocks differ in more than their
            values.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(f"scan_layers must be False on this backend; got True on {keras.backend.backend()}, not jax")
    inputs = keras.tree.flatten(inputs)
    # the methods, as Keras would track models as sub-layers
    before = keras.Model(inputs, [start, *positions.values()]).call
    after = keras.Model([end, *inputs], outputs).call

    def call(values, training):
        values = keras.tree.flatten(values)
        tokens, *others = keras.tree.flatten(before(values, training=training))
        tokens = scan_blocks(blocks, tokens, dict(zip(positions, others, strict=True)), training)
        return after([tokens, *values], training=training)

    return call


def scan_blocks(blocks, tokens, positions, training):
    """Return the tokens after all blocks, each called with `positions` and `training`, in one loop.

    Raises:
        ValueError: if the variables of the blocks differ in more than their values.
    """
    first, *others = blocks
    kind = [(v.shape, v.dtype) for v in first.variables]
    for block in others:
        if [(v.shape, v.dtype) for v in block.variables] != kind:
            raise ValueError(
                f"scan_layers=True needs equal blocks; {block.name} differs from {first.name} (use scan_layers=False)"
            )
    weights = {id(weight) for weight in first.weights}
    states = [i for i, variable in enumerate(first.variables) if id(variable) not in weights]  # of random numbers
    columns = list(zip(*(block.variables for block in blocks), strict=True))

    def step(tokens, values):
        with keras.StatelessScope(state_mapping=zip(first.variables, values, strict=True)) as scope:
            tokens = first(tokens, positions or None, training=training)
        return tokens, [scope.get_current_value(first.variables[i]) for i in states]

    stacked = [ops.stack([ops.convert_to_tensor(variable) for variable in column]) for column in columns]
    tokens, updated = ops.scan(step, tokens, stacked)
    for i, values in zip(states, updated, strict=True):
        for variable, value in zip(columns[i], values, strict=True):
            variable.assign(value)
    return tokens
