"""features: intermediate outputs of a model, as sequences of tokens or as maps."""

import keras
from keras import ops


def features(model, names, grid=True):
    """Builds a model that gives several intermediates of `model` at once; it shares its layers and weights.

    Args:
        model: a model of this package; its intermediates are listed in its docstring.
        names: names of layers, such as `["block_03", "block_11", "encoder_norm"]`.
        grid: True returns tokens (batch, tokens, dim) as maps (batch, rows, columns, dim) without class token and
            registers; outputs of another rank are returned as they are. False returns every output as it is.

    Returns:
        A keras model from pictures to the list of outputs in the order of `names`.

    Raises:
        ValueError: if a name is no layer of the model; the message lists those there are.
    """
    names = [names] if isinstance(names, str) else list(names)
    known = [layer.name for layer in model.layers]
    for name in names:
        if name not in known:
            raise ValueError(f"names must be layers of the model, among {known}; got {name!r}")
    if not names:
        raise ValueError("names must name at least one layer; got an empty list")
    outputs = [model.get_layer(name).output for name in names]
    if grid:
        outputs = [_as_map(output, model.config, name) for output, name in zip(outputs, names, strict=True)]
    return keras.Model(model.input, outputs, name=f"{model.name}_features")


def _as_map(tokens, config, name):
    num_patches = config.grid_size[0] * config.grid_size[1]
    if len(tokens.shape) != 3:
        return tokens
    num_prefix = tokens.shape[1] - num_patches  # 0 right after the patch encoder, else class token and registers
    return ops.reshape(tokens[:, num_prefix:], (-1, *config.grid_size, tokens.shape[2]))
