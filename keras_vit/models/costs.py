"""The cost of a model: multiply-accumulates per image, and floating-point operations of a training run.

By convention, only matrix products and convolutions count; norms, activations, additions and pooling do not.

A layer that multiplies matrices itself, as attention does, has a method `own_macs(input_shape)`. It returns the
multiply-accumulates of one call on this shape, batch axis included, without those of its sub-layers. If the call takes
several tensors, `own_macs` takes their shapes in the same order.
"""

import math
import typing

import keras

from keras_vit.compat.call_shapes import call_shapes
from keras_vit.compat.graph import graph_calls, own_weights, sublayers
from keras_vit.layers import AddPositionEmbs, ClassToken
from keras_vit.layers.relative_positions import RelativePositions
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.layers.window_attention import RelativePositionBias

_FORWARD_AND_BACKWARD = 6  # per multiply-accumulate: 2 operations forward, 4 backward


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
        model: a functional Keras model with inputs of known size; it may come from `build_deferred`.

    Raises:
        ValueError: if a layer has matrices, or an operation, whose multiplications are unknown.
    """
    return sum(cost.macs for cost in layer_costs(model))


def layer_costs(model):
    """Return a `LayerCost` for each direct layer of the model, in the order of the first call.

    Args:
        model: see `count_macs`, which raises the same errors.
    """
    _refuse_operations(model)
    macs = {}
    for call in call_shapes(model):
        if call.depth == 0:
            top = call.layer
        macs[top] = macs.get(top, 0) + _macs(call)
    shapes = _output_shapes(model)
    return [LayerCost(layer.name, shapes[layer], layer.count_params(), count) for layer, count in macs.items()]


def training_exaflops(macs, examples):
    """Return the cost of a training run in exaFLOPs (10^18 operations): 6 * macs * examples.

    The formula agrees with Table 6 of arXiv 2010.11929, where `examples` is epochs times 303 million images.

    Args:
        macs: multiply-accumulates of the model per example, see `count_macs`.
        examples: number of examples that the model trains on, repetitions included.
    """
    return _FORWARD_AND_BACKWARD * macs * examples / 1e18


def _macs(call):
    layer = call.layer
    if None in keras.tree.flatten((call.input_shapes, call.output_shape)):
        raise ValueError(f"model must have layers of known sizes; got {call.input_shapes} at {layer.path}")
    if hasattr(layer, "own_macs"):
        return layer.own_macs(*call.input_shapes)
    for layer_class, formula in _FORMULAS.items():
        if isinstance(layer, layer_class):
            return formula(layer, call)
    matrices = [weight.path for weight in own_weights(layer) if len(weight.shape) > 1]
    if isinstance(layer, _MULTIPLYING) or matrices and not isinstance(layer, _FREE):
        raise ValueError(
            f"model must consist of layers whose multiplications are known (define own_macs); got "
            f"{type(layer).__name__} {layer.name!r}{' with ' + ', '.join(matrices) if matrices else ''}"
        )
    return 0


def _dense(layer, call):
    return math.prod(call.input_shapes[0]) * layer.units


def _convolution(layer, call):
    # The kernel is (height, width, channels of a group, filters).
    return math.prod(call.output_shape) * math.prod(layer.kernel.shape[:-1])


def _depthwise_convolution(layer, call):
    return math.prod(call.output_shape) * math.prod(layer.kernel_size)


# class, subclasses included -> multiply-accumulates of one call
_FORMULAS = {
    keras.layers.Dense: _dense,
    keras.layers.Conv2D: _convolution,
    StdConv2D: _convolution,
    keras.layers.DepthwiseConv2D: _depthwise_convolution,
}

# Their matrices are tables that are looked up, added or concatenated.
_FREE = (AddPositionEmbs, ClassToken, RelativePositionBias, RelativePositions, keras.layers.Embedding)

# Keras layers that multiply without weights.
_MULTIPLYING = (keras.layers.Attention, keras.layers.Dot)

# `keras.ops` that may appear between the layers of a functional model
_MULTIPLYING_OPERATIONS = (
    *("Conv", "ConvTranspose", "DepthwiseConv", "SeparableConv", "DotProductAttention"),
    *("Dot", "Einsum", "Inner", "Matmul", "Outer", "Tensordot", "Vdot"),
)


def _refuse_operations(model):
    for part in (model, *sublayers(model)):
        for operation in getattr(part, "operations", ()):
            if not isinstance(operation, keras.layers.Layer) and type(operation).__name__ in _MULTIPLYING_OPERATIONS:
                raise ValueError(
                    f"model must multiply only inside layers, to be counted; got the operation {operation.name!r}"
                )


def _output_shapes(model):
    """Return {layer of the model: output shape of its last call}, which `layer.output` does not always give."""
    shapes = {}
    for call in graph_calls(model):
        shape = [tuple(tensor.shape) for tensor in call.outputs]
        shapes[call.operation] = shape if len(shape) > 1 else shape[0]
    return shapes
