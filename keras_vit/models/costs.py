"""The cost of a model: multiply-accumulates per image.

By convention, only matrix products and convolutions count; norms, activations, additions and pooling do not.

A layer that multiplies matrices itself, as attention does, has a method `own_macs(input_shape)`. It returns the
multiply-accumulates of one call on this shape, batch axis included. If the call takes several tensors, `own_macs` takes
their shapes in the same order. `_PARTS` states what the layers of this package call; for any other layer, `own_macs`
includes its sub-layers.
"""

import math
import typing

import keras

from keras_vit import layers
from keras_vit.compat.graph import graph_calls
from keras_vit.compat.initial_values import build_deferred
from keras_vit.layers.patch_corruption import PatchPrediction
from keras_vit.layers.position_embs import RelativePositions
from keras_vit.layers.token_merging import MergingTransformerBlock


class LayerCost(typing.NamedTuple):
    """The cost of one layer of a model.

    Attributes:
        name: name of the layer.
        output_shape: shape of the output, with None for the batch axis.
        parameters: number of parameters.
        macs: multiply-accumulates per image, summed over all calls of the layer.
    """

    name: str
    output_shape: tuple
    parameters: int
    macs: int


def count_macs(model):
    """Return the multiply-accumulates of a model per image, in matrix products and convolutions.

    It counts one call in inference. LoRA adapters are not counted, because Keras adds them to the kernel.

    Args:
        model: a functional Keras model with inputs of known size and any batch size; it may come from `build_deferred`.
            Only the first axis of a tensor in its graph may be the batch.

    Raises:
        ValueError: if a size is unknown, or a layer has matrices, or an operation, whose multiplications are unknown.
    """
    return sum(cost.macs for cost in layer_costs(model))


def layer_costs(model):
    """Return a `LayerCost` for each direct layer of the model, in the order of the first call.

    Args:
        model: see `count_macs`, which raises the same errors.
    """
    macs, shapes = {}, {}
    for call in graph_calls(model):
        layer, outputs = call.operation, [tuple(tensor.shape) for tensor in call.outputs]
        count = _macs(layer, *(_of_one_image(tensor, layer) for tensor in call.input_tensors))
        if isinstance(layer, keras.Layer) and not isinstance(layer, keras.layers.InputLayer):
            macs[layer] = macs.get(layer, 0) + count
            shapes[layer] = outputs if len(outputs) > 1 else outputs[0]
    return [LayerCost(layer.name, shapes[layer], layer.count_params(), count) for layer, count in macs.items()]


def _of_one_image(tensor, layer):
    if None in tensor.shape[1:]:
        raise ValueError(f"model must have inputs and layers of known size; got {tuple(tensor.shape)} at {layer.name}")
    return tuple(1 if side is None else side for side in tensor.shape)


def _macs(layer, *shapes):
    """Return the multiply-accumulates of one call of a layer, or operation, on tensors of these shapes."""
    if isinstance(layer, keras.Model) and graph_calls(layer):
        return count_macs(_for_size(layer, shapes))
    formula, parts = (_row_of(table, layer) for table in (_FORMULAS, _PARTS))
    if formula is not None:
        return formula(layer, *shapes)
    own = layer.own_macs(*shapes) if hasattr(layer, "own_macs") else None
    if parts is not None:
        return (own or 0) + sum(_macs(*part) for part in parts(layer, *shapes))
    return _of_unknown(layer) if own is None else own


def _row_of(table, layer):
    return next((value for kind, value in table.items() if isinstance(layer, kind)), None)


def _for_size(model, shapes):
    """Return an inner model, such as the stem of a hybrid, or its copy for images of a known size."""
    if not any(None in tensor.shape[1:] for tensor in model.inputs):
        return model
    inputs = [keras.Input(shape[1:], dtype=x.dtype) for shape, x in zip(shapes, model.inputs, strict=True)]
    inputs = keras.tree.pack_sequence_as(model.input, inputs)
    return build_deferred(lambda: keras.models.clone_model(model, input_tensors=inputs))[0]


def _of_unknown(layer):
    """Return 0 for a layer or operation that multiplies no matrices; raise an error if it may."""
    if not isinstance(layer, keras.Layer):
        if type(layer).__name__ in _MULTIPLYING_OPERATIONS:
            raise ValueError(f"model must multiply only inside layers, to be counted; got the operation {layer.name!r}")
        return 0
    matrices = [weight.path for weight in layer.weights if len(weight.shape) > 1]
    if isinstance(layer, _MULTIPLYING) or matrices and not isinstance(layer, _FREE):
        raise ValueError(
            f"model must consist of layers whose multiplications are known (define own_macs); got "
            f"{type(layer).__name__} {layer.name!r}{' with ' + ', '.join(matrices) if matrices else ''}"
        )
    return 0


def _convolution(layer, shape):
    # The kernel is (height, width, channels of a group, filters).
    return math.prod(layer.compute_output_shape(shape)) * math.prod(layer.kernel.shape[:-1])


# class, subclasses included -> multiply-accumulates of one call
_FORMULAS = {
    keras.layers.Dense: lambda layer, shape: math.prod(shape) * layer.units,
    keras.layers.Conv2D: _convolution,
    layers.StdConv2D: _convolution,
    keras.layers.DepthwiseConv2D: lambda layer, shape: (
        math.prod(layer.compute_output_shape(shape)) * math.prod(layer.kernel_size)
    ),
}


def _projections(layer, tokens, *_):
    return [(layer.qkv, tokens), (layer.proj, tokens)]


def _merging_block(layer, tokens, *merged):
    keys = (*tokens[:2], tokens[2] // layer.attention.num_heads)
    merged_tokens, *_ = layer.compute_output_shape(tokens, *merged)
    return [(layer.attention, tokens), (layer.merging, tokens, keys), (layer.mlp, merged_tokens)]


def _axial_block(layer, tokens):
    (batch, _, dim), (rows, columns) = tokens, layer.grid_size
    return [(layer.row_block, (batch * rows, columns, dim)), (layer.column_block, (batch * columns, rows, dim))]


def _patch_merging(layer, maps):
    *cells, width = layer.compute_output_shape(maps)
    return [(layer.reduction, (*cells, 2 * width))]


def _swin_block(layer, maps):
    (batch, *_, dim), window = maps, layer.built_window**2
    windows = (batch, math.prod(layer.padded_size) // window, window, dim)
    return [(layer.attention, windows), (layer.mlp, maps)]


def _attention_pooling(layer, tokens):
    batch, length, dim = tokens
    query, patches = (batch, 1, dim), (batch, length - layer.num_prefix_tokens, dim)
    return [(layer.query, query), (layer.key_value, patches), (layer.proj, query), (layer.mlp, query)]


def _bottleneck(layer, maps):
    border = 2 if layer.conv2.padding == "valid" else 0  # the unit pads by itself
    padded = (maps[0], maps[1] + border, maps[2] + border, layer.width)
    inner = (*layer.compute_output_shape(maps)[:3], layer.width)
    parts = [(layer.conv1, maps), (layer.conv2, padded), (layer.conv3, inner)]
    return parts if layer.shortcut_conv is None else [*parts, (layer.shortcut_conv, maps)]


def _axial_bottleneck(layer, maps):
    inner, pooled = ((*shape[:3], layer.width) for shape in (maps, layer.compute_output_shape(maps)))
    parts = [(layer.down, maps), (layer.height_attention, inner), (layer.width_attention, inner), (layer.up, pooled)]
    return [*parts, (layer.shortcut, maps)] if layer.has_projection else parts


def _stage(layer, maps):
    for unit in layer.units:
        yield unit, maps
        maps = unit.compute_output_shape(maps)


# class, subclasses included -> the sub-layers with matrices that one call runs, each with the shapes of its inputs
_PARTS = {
    layers.AttentionPooling: _attention_pooling,
    layers.AxialAttention: lambda layer, maps: [(layer.qkv, maps)],
    layers.AxialBottleneck: _axial_bottleneck,
    layers.AxialStage: _stage,
    layers.AxialTransformerBlock: _axial_block,
    layers.BottleneckUnit: _bottleneck,
    layers.MlpBlock: lambda layer, x: [(layer.dense1, x), (layer.dense2, (*x[:-1], layer.mlp_dim))],
    layers.MultiHeadSelfAttention: _projections,
    layers.PatchEncoder: lambda layer, images: [(layer.projection, images)],
    layers.PatchMerging: _patch_merging,
    layers.PreActivationUnit: _bottleneck,
    layers.ResNetStage: _stage,
    layers.SwinBlock: _swin_block,
    MergingTransformerBlock: _merging_block,  # a subclass of the next
    layers.TransformerBlock: lambda layer, tokens, *keys: [(layer.attention, tokens, *keys), (layer.mlp, tokens)],
    layers.WindowAttention: _projections,
    PatchPrediction: lambda layer, tokens, places: [(layer.projection, (*places, tokens[-1]))],
}

# Their matrices are tables that are looked up, added or concatenated.
_FREE = (layers.AddPositionEmbs, layers.ClassToken, RelativePositions, keras.layers.Embedding)

# Keras layers that multiply without weights.
_MULTIPLYING = (keras.layers.Attention, keras.layers.Dot)

# `keras.ops` that may appear between the layers of a functional model
_MULTIPLYING_OPERATIONS = (
    *("Conv", "ConvTranspose", "DepthwiseConv", "SeparableConv", "DotProductAttention"),
    *("Dot", "Einsum", "Inner", "Matmul", "Outer", "Tensordot", "Vdot"),
)
