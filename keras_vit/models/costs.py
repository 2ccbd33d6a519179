"""What a model costs: multiply-accumulates counted on the built graph, and the floating-point operations of a training.

Only matrix products and convolutions count, as is the custom: norms, activations, additions and pooling are left out.

A layer that multiplies matrices outside of the layers inside it, as attention does, has a method
`own_macs(input_shape)`: the multiply-accumulates of one call on exactly this shape, the batch axis included, without
those of its sub-layers. If it takes several tensors, `own_macs` takes their shapes in the order of the call.
"""

import math
import typing

import keras

from keras_vit.compat.call_shapes import call_shapes, own_weights
from keras_vit.compat.graph import graph_calls
from keras_vit.compat.sublayers import sublayers
from keras_vit.layers import AddPositionEmbs, ClassToken
from keras_vit.layers.relative_positions import RelativePositions
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.layers.window_attention import RelativePositionBias

_FORWARD_AND_BACKWARD = 6  # per multiply-accumulate: 2 operations forward, 4 backward


class LayerCost(typing.NamedTuple):
    """What one layer of a model costs.

    Attributes:
        name: of the layer.
        output_shape: with None for the batch axis.
        parameters: how many it has.
        macs: multiply-accumulates on one image; the sum of its calls if it is called several times.
    """

    name: str
    output_shape: tuple
    parameters: int
    macs: int


def count_macs(model):
    """Returns the multiply-accumulates of a model on one image, in matrix products and convolutions.

    It counts what one call in inference runs, whatever the class of the model. LoRA's adapters are not counted: Keras
    adds them to the kernel.

    Args:
        model: a functional keras model with inputs of known size, also one of `build_deferred`.

    Raises:
        ValueError: on a layer with matrices or an operation of which it is not known what it multiplies.
    """
    return sum(cost.macs for cost in layer_costs(model))


def layer_costs(model):
    """Returns a `LayerCost` for each layer that the model itself consists of, in the order of the first call.

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
    """Returns the cost of a training in exaFLOPs, 10^18 floating-point operations: 6 * macs * examples.

    The formula agrees with Table 6 of arXiv 2010.11929, where `examples` is epochs times 303 million images.

    Args:
        macs: multiply-accumulates of the model on one example, see `count_macs`.
        examples: how many the model sees, repetitions included.
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
            f"model must consist of layers whose multiplications are known (own_macs says them); got "
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

# Their matrices are tables, which are looked up, added or put beside the tokens.
_FREE = (AddPositionEmbs, ClassToken, RelativePositionBias, RelativePositions, keras.layers.Embedding)

# Layers of Keras that multiply without weights of their own.
_MULTIPLYING = (keras.layers.Attention, keras.layers.Dot)

# `keras.ops` that may stand between the layers of a functional model
_MULTIPLYING_OPERATIONS = (
    *("Conv", "ConvTranspose", "DepthwiseConv", "SeparableConv", "DotProductAttention"),
    *("Dot", "Einsum", "Inner", "Matmul", "Outer", "Tensordot", "Vdot"),
)


def _refuse_operations(model):
    for part in (model, *sublayers(model)):
        for operation in getattr(part, "operations", ()):
            if not isinstance(operation, keras.layers.Layer) and type(operation).__name__ in _MULTIPLYING_OPERATIONS:
                raise ValueError(
                    f"model must multiply inside layers, where it can be counted; got the operation {operation.name!r}"
                )


def _output_shapes(model):
    """{layer of the model: shape of what its last call there gives}, which `layer.output` does not always tell."""
    shapes = {}
    for call in graph_calls(model):
        shape = [tuple(tensor.shape) for tensor in call.outputs]
        shapes[call.operation] = shape if len(shape) > 1 else shape[0]
    return shapes
