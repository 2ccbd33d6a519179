"""The cost of a model: multiply-accumulates per image.

By convention, only matrix products and convolutions count; norms, activations, additions and pooling do not. The
count uses the graph of `keras.ops` that results from a layer's `call` on symbolic tensors.
"""

import math
import typing

import keras

from keras_vit.compat.graph import graph_calls
from keras_vit.layers import AttentionPooling, StdConv2D

_COUNTED: dict[str, int | None] = {}  # layer config and input shapes -> cost; a cache, because blocks repeat


class LayerCost(typing.NamedTuple):
    """The cost of one layer of a model, or of an operation between its layers that multiplies.

    Attributes:
        name: name of the layer.
        output_shape: shape of the output, with None for the batch axis.
        parameters: number of parameters.
        macs: multiply-accumulates per image, summed over all calls of the layer; None if they are unknown.
    """

    name: str
    output_shape: tuple
    parameters: int
    macs: int | None


def count_macs(model):
    """Return the multiply-accumulates of a model per image, in matrix products and convolutions.

    It counts one call in inference. LoRA adapters are not counted, because Keras adds them to the kernel.

    Args:
        model: a functional Keras model with inputs of known size and any batch size; it may come from `build_deferred`.
            Only the first axis of a tensor in its graph may be the batch.

    Raises:
        ValueError: if a size is unknown, or a layer has matrices and calls other operations than those of Keras.
    """
    costs = layer_costs(model)
    unknown = [cost.name for cost in costs if cost.macs is None]
    if unknown:
        raise ValueError(f"model must have layers of known cost (of Keras, or of keras.ops); got {', '.join(unknown)}")
    return sum(cost.macs for cost in costs)


def layer_costs(model):
    """Return a `LayerCost` for each direct layer of the model, in the order of the first call.

    Args:
        model: see `count_macs`.

    Raises:
        ValueError: if a size is unknown.
    """
    costs = {}
    for call in graph_calls(model):
        layer, shapes, macs = call.operation, [tuple(tensor.shape) for tensor in call.outputs], _macs(call)
        is_layer = isinstance(layer, keras.Layer) and not isinstance(layer, keras.layers.InputLayer)
        if is_layer or macs != 0:
            if layer in costs:
                macs = _sum([costs[layer].macs, macs])
            parameters = layer.count_params() if is_layer else 0
            costs[layer] = LayerCost(layer.name, shapes if len(shapes) > 1 else shapes[0], parameters, macs)
    return list(costs.values())


def _macs(call):
    """Return the multiply-accumulates of one call of a layer or operation; None if they are unknown."""
    layer = call.operation
    for tensor in call.input_tensors:
        if None in tensor.shape[1:]:
            raise ValueError(f"model must have tensors of known size; got {tuple(tensor.shape)} at {layer.name}")
    own_formula = next((formula for kind, formula in _LAYERS.items() if isinstance(layer, kind)), None)
    formula = own_formula or _OPERATIONS.get(type(layer).__name__)
    if formula is not None:
        return formula(call)
    if not isinstance(layer, keras.Layer):
        return None if type(layer).__name__ in _UNKNOWN else 0
    if not type(layer).__module__.startswith("keras_vit.layers"):
        return _macs_inside(call)
    key = repr((type(layer), {**layer.get_config(), "name": None}, [_shape(tensor) for tensor in call.input_tensors]))
    if key not in _COUNTED:
        _COUNTED[key] = _macs_inside(call)
    return _COUNTED[key]


def _macs_inside(call):
    layer = call.operation
    try:
        calls = _calls_inside(call)
    except Exception:  # operations of a backend fail on symbolic tensors with different errors
        return None if any(len(weight.shape) > 1 for weight in layer.weights) else 0
    # The query of attention pooling depends on no input, so its product is not among the calls.
    alone = math.prod(layer.query.kernel.shape) if isinstance(layer, AttentionPooling) and layer.query else 0
    return _sum([alone, *map(_macs, calls)])


def _calls_inside(call):
    """Return the calls of layers and operations in the call of a layer on one image."""
    layer = call.operation
    inputs = {id(tensor): keras.Input(batch_shape=_shape(tensor), dtype=tensor.dtype) for tensor in call.input_tensors}
    named = {name: value for name, value in call.arguments.kwargs.items() if name != "training"}
    args, kwargs = keras.tree.map_structure(lambda x: inputs.get(id(x), x), (call.arguments.args, named))
    if isinstance(layer, keras.Model) and graph_calls(layer):  # its inputs may be a list
        args = [keras.tree.pack_sequence_as(layer.input, [inputs[id(tensor)] for tensor in call.input_tensors])]
    outputs = keras.tree.flatten(layer.call(*args, **kwargs))
    outputs = [output for output in outputs if isinstance(output, keras.KerasTensor)]  # others are constants
    return graph_calls(keras.Function(list(inputs.values()), outputs)) if outputs else []


def _sum(counts):
    return None if None in counts else sum(counts)


def _shape(tensor):
    """Return the shape of a tensor for one image."""
    return (1 if tensor.shape[0] is None else tensor.shape[0], *tensor.shape[1:])


def _matrix_product(call):
    return math.prod(_shape(call.outputs[0])) * call.arguments.args[0].shape[-1]


def _convolution(call, kernel=None):
    kernel = call.operation.kernel if kernel is None else kernel  # (*sides, channels of a group, filters)
    return math.prod(_shape(call.outputs[0])) * math.prod(kernel.shape[:-1])


def _einsum(call):
    operands = call.operation.subscripts.replace(" ", "").partition("->")[0].split(",")
    sides = {}
    for letters, tensor in zip(operands, call.arguments.args, strict=True):
        sides |= dict(zip(letters, _shape(tensor), strict=True))
    return math.prod(sides.values())


# class, subclasses included -> multiply-accumulates of one call
_LAYERS = {
    keras.layers.Dense: _matrix_product,
    **dict.fromkeys((keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D, StdConv2D), _convolution),
}
# name of a class of `keras.ops` -> multiply-accumulates of one call
_OPERATIONS = {
    "Conv": lambda call: _convolution(call, call.arguments.args[1]),
    "DepthwiseConv": lambda call: math.prod(_shape(call.outputs[0])) * math.prod(call.arguments.args[1].shape[:-2]),
    "Einsum": _einsum,
    "Matmul": _matrix_product,
}
# names of classes of `keras.ops` whose cost is unknown
_UNKNOWN = ("ConvTranspose", "SeparableConv", "DotProductAttention", "Dot", "Inner", "Outer", "Tensordot", "Vdot")
