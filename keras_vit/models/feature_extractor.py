"""feature_extractor: intermediate outputs of a model, unchanged or as maps."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_vit.compat.graph import graph_calls
from keras_vit.layers.token_merging import MergingTransformerBlock, TokenUnmerging
from keras_vit.models.base import check_model


def feature_extractor(model: keras.Model, names: Sequence[str], grid: bool = True) -> keras.Model:
    """Build a model that returns several intermediate outputs of `model`.

    It shares the layers and weights of `model`.

    Args:
        model: a model of this package; its docstring lists the intermediates.
        names: names of layers, such as `["block_03", "block_11", "encoder_norm"]`; the custom stem model of a hybrid
            counts as a layer.
        grid: True returns tokens (batch, tokens, dim) as maps (batch, rows, columns, dim) without class, distillation
            and register tokens, and returns outputs of another rank, such as the maps of stems, stages and Swin,
            unchanged. False returns every output unchanged. In both cases, merged tokens (`token_merging`) are copied
            back to the places of the original tokens.

    Returns:
        A Keras model from images to the list of outputs in the order of `names`, or to the output of a single name.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if a name is not a layer of the model (the message lists the layers), or the model calls the layer
            several times, such as `position_embs` with `position_placement="shared"`.
    """
    check_model(model)
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise ValueError("names must name at least one layer; got an empty list")
    outputs = [_output(model, name) for name in names]
    if grid:
        outputs = [_as_map(output, model.config) for output in outputs]
    return keras.Model(model.input, outputs if len(outputs) > 1 else outputs[0], name=f"{model.name}_features")


def _output(model, name):
    known = [layer.name for layer in model.layers]
    if name not in known:
        raise ValueError(f"names must be layers of the model, among {known}; got {name!r}")
    layer = model.get_layer(name)
    calls = [call for call in graph_calls(model) if call.operation is layer]
    if len(calls) > 1:
        raise ValueError(
            f"names must be layers that the model calls once; got {name!r}, which it calls {len(calls)} times "
            "(name the layers after it)"
        )
    if isinstance(layer, MergingTransformerBlock):
        tokens, _, groups = calls[0].outputs
        return TokenUnmerging(dtype=layer.dtype_policy.name, name=f"{name}_unmerging")(tokens, groups)
    return calls[0].outputs[0]


def _as_map(tokens, config):
    if len(tokens.shape) != 3:
        return tokens
    length, dim = tokens.shape[1:]
    rows, columns = _grid(length, config)
    num_prefix = length - rows * columns  # 0 right after the patch encoder
    return ops.reshape(tokens[:, num_prefix:], (-1, rows, columns, dim))


def _grid(length, config):
    """Return the grid of this number of tokens: the patch grid, or that of a later Swin stage."""
    grids = [config.stage_size(stage) for stage in range(len(config.depths))] if config.family == "swin" else []
    return next((grid for grid in grids if math.prod(grid) == length), config.grid_size)
