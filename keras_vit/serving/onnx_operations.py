"""How each operation of TensorFlow is written in ONNX: one table.

A rule is the name of an operation of ONNX with the same inputs, or a function of the graph, of TensorFlow's operation
and of the names of its inputs. It returns the name of the output, or a list of names.
"""

import numpy as np
import tensorflow as tf
from onnx import TensorProto

_END = 2**31 - 1  # of a slice that has none
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_DTYPES = {
    tf.float32: TensorProto.FLOAT,
    tf.int32: TensorProto.INT64,
    tf.int64: TensorProto.INT64,
    tf.uint8: TensorProto.UINT8,
    tf.bool: TensorProto.BOOL,
}


def dtype_of(tensor):
    """Return the dtype of ONNX of a tensor of TensorFlow. For int32 it is int64, which shapes have in ONNX."""
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"tensors must be of {', '.join(dtype.name for dtype in _DTYPES)}; got {tensor}")
    return _DTYPES[tensor.dtype]


def _integers(tensor):
    """Return the values of a tensor that is known without running the graph."""
    values = tf.get_static_value(tensor)
    if values is None:
        raise ValueError(f"{tensor.name} must be a constant in ONNX; it depends on the input")
    return np.ravel(values).tolist()


def _alias(graph, op, x, *_):
    return x


def _reduction(kind):
    return lambda graph, op, x, _: graph.add(kind, x, _integers(op.inputs[1]), keepdims=int(op.get_attr("keep_dims")))


def _all(graph, op, x, _):
    x = graph.add("Cast", x, to=TensorProto.INT64)
    least = graph.add("ReduceMin", x, _integers(op.inputs[1]), keepdims=int(op.get_attr("keep_dims")))
    return graph.add("Cast", least, to=TensorProto.BOOL)


def _not(kind):
    return lambda graph, op, *inputs: graph.add("Not", graph.add(kind, *inputs))


def _square(graph, op, x):
    return graph.add("Mul", x, x)


def _squared_difference(graph, op, x, y):
    return _square(graph, op, graph.add("Sub", x, y))


def _rsqrt(graph, op, x):
    return graph.add("Reciprocal", graph.add("Sqrt", x))


def _erfc(graph, op, x):
    return graph.add("Sub", np.float32(1), graph.add("Erf", x))


def _floor_div(graph, op, x, y):
    if op.outputs[0].dtype.is_floating:
        return graph.add("Floor", graph.add("Div", x, y))
    return graph.add("Div", graph.add("Sub", x, graph.add("Mod", x, y)), y)  # Div rounds towards zero


def _cast(graph, op, x):
    before, after = dtype_of(op.inputs[0]), dtype_of(op.outputs[0])
    return x if before == after else graph.add("Cast", x, to=after)


def _zeros_like(graph, op, x):
    return graph.add("Mul", x, op.outputs[0].dtype.as_numpy_dtype(0))


def _pack(graph, op, *parts):
    axis = op.get_attr("axis")
    return graph.add("Concat", *(graph.add("Unsqueeze", part, [axis]) for part in parts), axis=axis)


def _unpack(graph, op, x):
    return [graph.add("Gather", x, np.int64(place), axis=op.get_attr("axis")) for place in range(len(op.outputs))]


def _concat(graph, op, *inputs):
    (axis,) = _integers(op.inputs[-1])
    return graph.add("Concat", *inputs[:-1], axis=axis)


def _split(graph, op, _, x):
    (axis,), count = _integers(op.inputs[0]), len(op.outputs)
    return graph.add("Split", x, outputs=count, axis=axis, num_outputs=count)


def _split_in_sizes(graph, op, x, sizes, _):
    (axis,) = _integers(op.inputs[2])
    return graph.add("Split", x, sizes, outputs=len(op.outputs), axis=axis)


def _strided_slice(graph, op, x, begin, end, _):
    masks = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    steps, before = _integers(op.inputs[3]), 0
    has = {name: [bool(mask >> place & 1) for place in range(len(steps))] for name, mask in masks.items()}
    skipped = op.inputs[0].shape.rank - len(steps) + sum(has["new_axis"]) + 1  # axes of an ellipsis

    def element(place, vector, known):
        """Return one number of the begins or the ends: a list if it is known, else a tensor."""
        is_open = known is None or known[place] is None
        return graph.add("Gather", vector, [place]) if is_open else [int(known[place])]

    rows, gone, new, axis = [], [], [], 0  # rows: start, stop, axis, step
    begins, ends = (tf.get_static_value(tensor, partial=True) for tensor in op.inputs[1:3])
    for place, step in enumerate(steps):
        if has["ellipsis"][place]:
            axis, before = axis + skipped, before + skipped
            continue
        if has["new_axis"][place]:
            new.append(before)
        else:
            start = [0 if step > 0 else _END] if has["begin"][place] else element(place, begin, begins)
            stop = [_END if step > 0 else -_END] if has["end"][place] else element(place, end, ends)
            if has["shrink_axis"][place]:
                gone.append(axis)
                known = isinstance(start, list)
                stop = [start[0] + 1 or _END] if known else graph.add("Add", start, [1])
            rows.append((start, stop, [axis], [step]))
            axis += 1
        before += not has["shrink_axis"][place]
    if rows:
        x = graph.add("Slice", x, *(_joined(graph, column) for column in zip(*rows, strict=True)))
    x = graph.add("Squeeze", x, gone) if gone else x
    return graph.add("Unsqueeze", x, new) if new else x


def _joined(graph, parts):
    """Return lists of integers and tensors of one as one list or tensor."""
    if all(isinstance(part, list) for part in parts):
        return [number for part in parts for number in part]
    return graph.add("Concat", *parts, axis=0)


def _transpose(graph, op, x, _):
    return graph.transposed(x, _integers(op.inputs[1]))


def _squeeze(graph, op, x):
    axes = list(op.get_attr("squeeze_dims"))
    return graph.add("Squeeze", x, *([axes] if axes else []))


def _expand_dims(graph, op, x, _):
    return graph.add("Unsqueeze", x, _integers(op.inputs[1]))


def _pad(graph, op, x, margins, *value):
    return graph.add("Pad", x, graph.add("Reshape", graph.transposed(margins, (1, 0)), [-1]), *value)


def _gather(graph, op, x, places, _):
    ((axis,), batch) = _integers(op.inputs[2]), op.get_attr("batch_dims")
    if not batch:
        return graph.add("Gather", x, places, axis=axis)
    if axis != batch:
        raise ValueError(f"axis and batch_dims must be equal in {op.name}; got {axis} and {batch}")
    return graph.add("GatherND", x, graph.add("Unsqueeze", places, [-1]), batch_dims=batch)


def _one_hot(graph, op, places, depth, on, off):
    values = _joined(graph, [graph.add("Unsqueeze", value, [0]) for value in (off, on)])
    return graph.add("OneHot", places, depth, values, axis=op.get_attr("axis"))


def _arg_max(graph, op, x, _):
    (axis,) = _integers(op.inputs[1])
    return graph.add("ArgMax", x, axis=axis, keepdims=0)


def _top_k(graph, op, x, count):
    return graph.add("TopK", x, graph.add("Unsqueeze", count, [0]), outputs=2)


def _product(first, second):
    """Return the rule of a matrix product; the attributes say which factors are transposed."""

    def rule(graph, op, *inputs):
        factors = []
        for x, tensor, attribute in zip(inputs, op.inputs, (first, second), strict=True):
            *batch, row, column = range(tensor.shape.rank)
            factors.append(graph.transposed(x, (*batch, column, row)) if op.get_attr(attribute) else x)
        return graph.add("MatMul", *factors)

    return rule


def _einsum(graph, op, *inputs):
    return graph.add("Einsum", *inputs, equation=op.get_attr("equation").decode())


def _windows(op):
    """Return attributes of a convolution or a pooling: strides and padding."""
    padding, attributes = op.get_attr("padding").decode(), {"strides": list(op.get_attr("strides")[1:3])}
    if padding == "EXPLICIT":
        _, _, top, bottom, left, right, _, _ = op.get_attr("explicit_paddings")
        return attributes | {"pads": [top, left, bottom, right]}
    return attributes | {"auto_pad": "SAME_UPPER" if padding == "SAME" else "VALID"}


def _on_maps(graph, kind, x, *weights, **attributes):
    """Write an operation on maps, whose channels ONNX expects before rows and columns."""
    x = graph.add(kind, graph.transposed(x, _CHANNELS_FIRST), *weights, **attributes)
    return graph.transposed(x, _CHANNELS_LAST)


def _convolution(graph, op, x, kernel):
    groups = op.inputs[0].shape[-1] // op.inputs[1].shape[2]
    kernel, dilations = graph.transposed(kernel, (3, 2, 0, 1)), list(op.get_attr("dilations")[1:3])
    return _on_maps(graph, "Conv", x, kernel, group=groups, dilations=dilations, **_windows(op))


def _depthwise_convolution(graph, op, x, kernel):
    height, width, channels, multiple = op.inputs[1].shape
    kernel = graph.add("Reshape", graph.transposed(kernel, (2, 3, 0, 1)), [channels * multiple, 1, height, width])
    return _on_maps(graph, "Conv", x, kernel, group=channels, **_windows(op))


def _transposed_convolution(graph, op, _, kernel, x):
    strides, is_same = op.get_attr("strides")[1:3], op.get_attr("padding") == b"SAME"
    excess = [side - stride for side, stride in zip(op.inputs[1].shape, strides, strict=False)]
    cut = [max(side, 0) if is_same else 0 for side in excess]
    pads = [side // 2 for side in cut] + [side - side // 2 for side in cut]
    missing = [max(-side, 0) for side in excess]
    attributes = {"strides": list(strides), "pads": pads, "output_padding": missing}
    return _on_maps(graph, "ConvTranspose", x, graph.transposed(kernel, (3, 2, 0, 1)), **attributes)


def _pooling(kind):
    def rule(graph, op, x):
        return _on_maps(graph, kind, x, kernel_shape=list(op.get_attr("ksize")[1:3]), **_windows(op))

    return rule


OPERATIONS = {
    **{name: name for name in ("Abs", "Ceil", "Cos", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater", "Less", "Neg")},
    **{name: name for name in ("Pow", "Range", "Relu", "Reshape", "Round", "Shape", "Sigmoid", "Sign", "Sin", "Size")},
    **{name: name for name in ("Softmax", "LogSoftmax", "Softplus", "Sqrt", "Sub", "Log", "Tanh", "Tile", "Mul")},
    **dict.fromkeys(("Identity", "StopGradient", "PreventGradient", "EnsureShape", "PlaceholderWithDefault"), _alias),
    **dict.fromkeys(("Add", "AddV2", "BiasAdd"), "Add"),
    "AddN": "Sum",
    "All": _all,
    "ArgMax": _arg_max,
    "AvgPool": _pooling("AveragePool"),
    "BatchMatMulV2": _product("adj_x", "adj_y"),
    "BroadcastTo": "Expand",
    "Cast": _cast,
    "ConcatV2": _concat,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _transposed_convolution,
    "DepthwiseConv2dNative": _depthwise_convolution,
    "Einsum": _einsum,
    "Erfc": _erfc,
    "ExpandDims": _expand_dims,
    "Fill": lambda graph, op, shape, value: graph.add("Expand", value, shape),
    "FloorDiv": _floor_div,
    "FloorMod": "Mod",
    "GatherNd": "GatherND",
    "GatherV2": _gather,
    "GreaterEqual": "GreaterOrEqual",
    "IdentityN": lambda graph, op, *inputs: list(inputs),
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalNot": "Not",
    "LogicalOr": "Or",
    "MatMul": _product("transpose_a", "transpose_b"),
    "Max": _reduction("ReduceMax"),
    "MaxPool": _pooling("MaxPool"),
    "Maximum": "Max",
    "Mean": _reduction("ReduceMean"),
    "Min": _reduction("ReduceMin"),
    "Minimum": "Min",
    "NotEqual": _not("Equal"),
    "OneHot": _one_hot,
    "Pack": _pack,
    "Pad": _pad,
    "PadV2": _pad,
    "Prod": _reduction("ReduceProd"),
    "RealDiv": "Div",
    "Rsqrt": _rsqrt,
    "SelectV2": "Where",
    "Split": _split,
    "SplitV": _split_in_sizes,
    "Square": _square,
    "SquaredDifference": _squared_difference,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Sum": _reduction("ReduceSum"),
    "TopKV2": _top_k,
    "Transpose": _transpose,
    "Unpack": _unpack,
    "ZerosLike": _zeros_like,
}
