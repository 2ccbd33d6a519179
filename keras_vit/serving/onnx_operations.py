"""How each operation of TensorFlow is written in ONNX: one table.

A rule is the name of an operation of ONNX with the same inputs, or a function of the graph, of TensorFlow's operation
and of the names of its inputs. It returns the name of the output, or a list of names.
"""

import numpy as np
import tensorflow as tf
from onnx import TensorProto

from keras_vit.files import read_table

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
        known = ", ".join(dtype.name for dtype in _DTYPES)
        raise ValueError(f"tensors must be of {known} (layers of 16 bits need the policy 'float32'); got {tensor}")
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
    def rule(graph, op, x, _):
        axes, keepdims = _integers(op.inputs[1]), int(op.get_attr("keep_dims"))
        return graph.add(kind, x, axes, keepdims=keepdims, noop_with_empty_axes=1)

    return rule


def _all(graph, op, x, axes):
    least = _reduction("ReduceMin")(graph, op, graph.add("Cast", x, to=TensorProto.INT64), axes)
    return graph.add("Cast", least, to=TensorProto.BOOL)


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


def _floor_mod(graph, op, x, y):
    if op.outputs[0].dtype.is_floating:  # the Mod of ONNX has the sign of x for these
        return graph.add("Sub", x, graph.add("Mul", _floor_div(graph, op, x, y), y))
    return graph.add("Mod", x, y)


def _cast(graph, op, x):
    before, after = dtype_of(op.inputs[0]), dtype_of(op.outputs[0])
    return x if before == after else graph.add("Cast", x, to=after)


def _zeros_like(graph, op, x):
    return graph.add("Expand", op.outputs[0].dtype.as_numpy_dtype(0), graph.add("Shape", x))


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
    known = [part.shape[axis] for part in op.outputs]
    # -1 stands for the rest in TensorFlow alone
    return graph.add("Split", x, sizes if None in known else known, outputs=len(op.outputs), axis=axis)


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
    rank = op.outputs[0].shape.rank  # OneHot of ONNX counts negative places from the end
    axis = op.get_attr("axis") % rank
    numbers = graph.add("Range", np.int64(0), depth, np.int64(1))
    numbers = graph.add("Unsqueeze", numbers, [other for other in range(rank) if other != axis])
    return graph.add("Where", graph.add("Equal", graph.add("Unsqueeze", places, [axis]), numbers), on, off)


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
    _check_channels_last(op)
    padding, attributes = op.get_attr("padding").decode(), {"strides": list(op.get_attr("strides")[1:3])}
    if padding == "EXPLICIT":
        _, _, top, bottom, left, right, _, _ = op.get_attr("explicit_paddings")
        return attributes | {"pads": [top, left, bottom, right]}
    return attributes | {"auto_pad": "SAME_UPPER" if padding == "SAME" else "VALID"}


def _check_channels_last(op):
    if op.get_attr("data_format") != b"NHWC":
        raise ValueError(f"data_format must be NHWC; got {op.get_attr('data_format').decode()} in {op.name}")


def _bias(graph, op, x, bias):
    _check_channels_last(op)
    return graph.add("Add", x, bias)


def _on_maps(graph, kind, x, *weights, **attributes):
    """Write an operation on maps, whose channels ONNX expects before rows and columns."""
    x = graph.add(kind, graph.transposed(x, _CHANNELS_FIRST), *weights, **attributes)
    return graph.transposed(x, _CHANNELS_LAST)


def _convolution(graph, op, x, kernel):
    groups = op.inputs[0].shape[-1] // op.inputs[1].shape[2]
    return _convolved(graph, op, x, graph.transposed(kernel, (3, 2, 0, 1)), groups)


def _depthwise_convolution(graph, op, x, kernel):
    height, width, channels, multiple = op.inputs[1].shape
    kernel = graph.add("Reshape", graph.transposed(kernel, (2, 3, 0, 1)), [channels * multiple, 1, height, width])
    return _convolved(graph, op, x, kernel, channels)


def _convolved(graph, op, x, kernel, groups):
    attributes, dilations = _windows(op), list(op.get_attr("dilations")[1:3])
    if attributes.get("auto_pad") == "SAME_UPPER" and attributes["strides"] == [1, 1]:
        # ONNX Runtime has no padding SAME with dilations
        gaps = [(side - 1) * rate for side, rate in zip(op.inputs[1].shape, dilations, strict=False)]
        attributes |= {"auto_pad": "NOTSET", "pads": [gap // 2 for gap in gaps] + [gap - gap // 2 for gap in gaps]}
    return _on_maps(graph, "Conv", x, kernel, group=groups, dilations=dilations, **attributes)


def _transposed_convolution(graph, op, _, kernel, x):
    _check_channels_last(op)
    strides, padding = list(op.get_attr("strides")[1:3]), op.get_attr("padding")
    if padding == b"EXPLICIT" or set(op.get_attr("dilations")) != {1}:
        raise ValueError(f"{op.name} must have the padding SAME or VALID, and no dilation")
    begins, ends, missing = [], [], []
    sides = zip(op.inputs[2].shape[1:3], op.outputs[0].shape[1:3], op.inputs[1].shape[:2], strides, strict=True)
    for before, after, side, stride in sides:
        if before is None or after is None:  # Keras's choice of several possible sizes
            before, after = 1, stride if padding == b"SAME" else max(side, stride)
        excess = (before - 1) * stride + side - after
        begins.append(max(excess, 0) // 2)
        ends.append(max(excess, 0) - begins[-1])
        missing.append(max(-excess, 0))
    attributes = {"strides": strides, "pads": begins + ends, "output_padding": missing}
    return _on_maps(graph, "ConvTranspose", x, graph.transposed(kernel, (3, 2, 0, 1)), **attributes)


def _pooling(kind):
    def rule(graph, op, x):
        return _on_maps(graph, kind, x, kernel_shape=list(op.get_attr("ksize")[1:3]), **_windows(op))

    return rule


OPERATIONS = {
    **{row["tensorflow"]: row["onnx"] for row in read_table("serving/onnx_operations.tsv")},
    **dict.fromkeys(("Identity", "StopGradient"), _alias),
    "All": _all,
    "AvgPool": _pooling("AveragePool"),
    "BatchMatMulV2": _product("adj_x", "adj_y"),
    "BiasAdd": _bias,
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
    "FloorMod": _floor_mod,
    "GatherV2": _gather,
    "IdentityN": lambda graph, op, *inputs: list(inputs),
    "MatMul": _product("transpose_a", "transpose_b"),
    "Max": _reduction("ReduceMax"),
    "MaxPool": _pooling("MaxPool"),
    "Mean": _reduction("ReduceMean"),
    "Min": _reduction("ReduceMin"),
    "OneHot": _one_hot,
    "Pack": _pack,
    "Pad": _pad,
    "PadV2": _pad,
    "Prod": _reduction("ReduceProd"),
    "Rsqrt": _rsqrt,
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
