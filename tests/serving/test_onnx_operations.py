"""Each rule of `onnx_operations` against TensorFlow itself, in ONNX Runtime, for two batch sizes."""

import functools

import numpy as np
import pytest
from faults import assert_no_faults, for_each

tf = pytest.importorskip("tensorflow")
onnx_graph = pytest.importorskip("keras_vit.serving.onnx_graph")
onnx_float16 = pytest.importorskip("keras_vit.serving.onnx_float16")
onnxruntime = pytest.importorskip("onnxruntime")

from keras_vit.serving.onnx_operations import OPERATIONS  # noqa: E402
from keras_vit.serving.tracing import reachable  # noqa: E402

RAW, RNG = tf.raw_ops, np.random.default_rng(0)
ROWS_3 = np.array([[-7, 3, 0, 5], [9, -2, 4, -5], [1, 8, -6, 2]], "int32")
DIVISORS = np.array([[3, -2, 5, -5], [-4, 2, 3, 3], [2, -3, -4, -1]], "int32")
VALUES = np.array([[-2.5, -0.5, 0.5, 1.5], [2.5, -1.5, 0.3, -0.7], [3.1, 0.0, -4.2, 7.5]], "float32")
OTHERS = np.array([[0.7, -0.5, 2.0, 1.5], [2.5, -3.0, 0.3, -0.9], [-1.3, 2.0, 0.6, 7.0]], "float32")
POSITIVE = np.abs(VALUES) + np.float32(0.1)
CUBES = RNG.normal(size=(3, 4, 5)).astype("float32")
MAPS, EVEN = (RNG.normal(size=(3, *sides, 4)).astype("float32") for sides in ((9, 11), (8, 6)))
BOOLS = VALUES > 0


def kernel(*shape):
    return tf.constant(RNG.normal(size=shape).astype("float32"))


def unary(name, *operands):
    """Cases of an operation with one input, which TensorFlow calls `x` or `features`."""
    parameter = "features" if name in ("Elu", "Relu") else "logits" if "Softmax" in name else "x"
    return [(lambda x: getattr(RAW, name)(**{parameter: x}), operand) for operand in operands]


def binary(name, *pairs):
    """Cases of an operation with two inputs: of the same shape, and the second a number of each column."""
    call = getattr(RAW, name)
    cases = [(lambda x, y: call(x=x, y=y), *pair) for pair in pairs]
    return cases + [(lambda x, y=pair[1][0]: call(x=x, y=tf.constant(y)), pair[0]) for pair in pairs]


def reduction(name, operand=CUBES):
    def case(axes, keep_dims):
        return lambda x: getattr(RAW, name)(input=x, axis=tf.constant(axes, "int32"), keep_dims=keep_dims), operand

    return [case(axes, keep) for axes in (-1, [1], [-1, 1], [1, 2], [-2], []) for keep in (False, True)]


def slices():
    def with_numbers(x, y):  # an index, a start and a stop that are only known as the graph runs
        n = tf.shape(y)[1]
        return [x[:, n - 3], x[:, n - 3 : n - 1], x[:, : n - 2, tf.newaxis, 1], x[:, n - 2 :: -1]]

    calls = [
        lambda x: x[:, 1:3],
        lambda x: x[:, -3:-1, 0],
        lambda x: x[:, ::2, ::3],
        lambda x: x[:, ::-1, ::-2],
        lambda x: x[:, 3:0:-1, 1],
        lambda x: x[:, -2::-1],
        lambda x: x[:, :-100:-1],
        lambda x: x[:, 100:, 2],
        lambda x: x[:, -100:2],
        lambda x: x[..., -1],
        lambda x: x[..., 1:],
        lambda x: x[:, ..., -2, tf.newaxis],
        lambda x: x[tf.newaxis, ..., tf.newaxis, 2:4],
        lambda x: x[:, tf.newaxis, -1, ..., tf.newaxis],
        lambda x: x[0],
        lambda x: x[-1:, 2:, tf.newaxis],
        lambda x: x[..., tf.newaxis],
        lambda x: tf.shape(x)[:2],
        lambda x: tf.shape(x)[-1],
        lambda x: tf.reshape(x, (tf.shape(x)[0], -1))[:, 3],
    ]
    masks = {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2, "new_axis_mask": 4}
    arrays = {"begin": [0, 2, 0, -3], "end": [0, 3, 0, 99], "strides": [1, 1, 1, 2]}
    raw = lambda x: RAW.StridedSlice(input=x, **arrays, **masks)  # noqa: E731
    return [(call, CUBES) for call in [*calls, raw]] + [
        (with_numbers, CUBES, CUBES),
        (lambda x: x[:, 1:, 0], ROWS_3[..., None]),
    ]


def convolutions():
    def case(maps, shape, **arguments):
        filters = kernel(*shape)
        options = {"strides": [1, 1, 1, 1], "padding": "SAME", **arguments}
        return lambda x: RAW.Conv2D(input=x, filter=filters, **options), maps

    return [
        case(MAPS, (3, 3, 4, 5)),
        case(MAPS, (2, 4, 4, 5)),
        case(MAPS, (3, 3, 4, 5), strides=[1, 2, 2, 1]),
        case(EVEN, (3, 3, 4, 5), strides=[1, 2, 2, 1]),
        case(MAPS, (4, 2, 4, 5), strides=[1, 3, 2, 1]),
        case(EVEN, (1, 1, 4, 5), strides=[1, 2, 2, 1]),
        case(MAPS, (3, 2, 4, 5), padding="VALID", strides=[1, 2, 3, 1]),
        case(MAPS, (3, 3, 4, 5), dilations=[1, 2, 3, 1]),
        case(MAPS, (2, 3, 4, 5), dilations=[1, 2, 2, 1], padding="VALID"),
        case(MAPS, (3, 3, 4, 5), padding="EXPLICIT", explicit_paddings=[0, 0, 2, 1, 0, 3, 0, 0]),
        case(MAPS, (3, 3, 2, 6)),  # two groups
        case(MAPS, (3, 3, 1, 8), strides=[1, 2, 2, 1]),  # four groups
    ]


def depthwise():
    def case(maps, shape, **arguments):
        filters = kernel(*shape)
        options = {"strides": [1, 1, 1, 1], "padding": "SAME", **arguments}
        return lambda x: RAW.DepthwiseConv2dNative(input=x, filter=filters, **options), maps

    return [
        case(MAPS, (3, 3, 4, 1)),
        case(MAPS, (3, 2, 4, 2)),
        case(EVEN, (4, 4, 4, 2), strides=[1, 2, 2, 1]),
        case(MAPS, (5, 3, 4, 3), padding="VALID"),
        case(MAPS, (3, 3, 4, 2), padding="EXPLICIT", explicit_paddings=[0, 0, 2, 1, 0, 3, 0, 0]),
        case(MAPS, (3, 3, 4, 2), padding="VALID", dilations=[1, 2, 2, 1]),
    ]


def transposed():
    def case(side, stride, padding):
        filters = kernel(*side, 3, 4)

        def call(x):
            batch, rows, columns, _ = tf.unstack(tf.shape(x))
            sides = [count * stride for count in (rows, columns)]
            if padding == "VALID":
                sides = [count + max(length - stride, 0) for count, length in zip(sides, side, strict=True)]
            options = {"strides": [1, stride, stride, 1], "padding": padding}
            sizes = tf.stack([batch, *sides, 3])
            return RAW.Conv2DBackpropInput(input_sizes=sizes, filter=filters, out_backprop=x, **options)

        return call, EVEN[:, :5]

    def other(x):  # 11 and 9: two of the sizes that give such maps, and not those of Keras
        return tf.nn.conv2d_transpose(x, low, [tf.shape(x)[0], 11, 9, 3], 2, "VALID")

    low, sides = kernel(2, 1, 3, 4), ((2, 2), (3, 3), (4, 4), (4, 3), (1, 2), (5, 5))
    rows = [case(side, stride, padding) for side in sides for stride in (2, 3) for padding in ("SAME", "VALID")]
    return [(other, EVEN[:, :5, :5]), *rows]


def pooling(name):
    def case(maps, side, stride, **arguments):
        options = {"ksize": [1, *side, 1], "strides": [1, *stride, 1], "padding": "SAME", **arguments}
        call = getattr(RAW, name)
        parameter = "value" if name == "AvgPool" else "input"
        return lambda x: call(**{parameter: x}, **options), maps

    cases = [
        case(MAPS, (3, 3), (2, 2)),
        case(EVEN, (3, 3), (2, 2)),
        case(MAPS, (2, 2), (1, 1)),
        case(EVEN, (2, 3), (2, 1)),
        case(MAPS, (2, 3), (2, 3), padding="VALID"),
        case(-np.abs(MAPS), (3, 3), (2, 2)),
    ]
    explicit = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 0, 0, 1, 0, 0]}
    return cases + ([case(-np.abs(MAPS), (2, 2), (2, 2), **explicit)] if name == "MaxPool" else [])


def product(name, first, second, x, y):
    call = getattr(RAW, name)
    names = ("a", "b") if name == "MatMul" else ("x", "y")

    def case(is_first, is_second):
        flags = {first: is_first, second: is_second}
        right = tf.constant(np.swapaxes(y, -1, -2) if is_second else y)
        turned = lambda z: tf.transpose(z, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]) if is_first else z  # noqa: E731
        return lambda z: call(**dict(zip(names, (turned(z), right), strict=True)), **flags), x

    return [case(*flags) for flags in ((False, False), (False, True), (True, False), (True, True))]


INDEX = np.array([[3, 0, 0], [1, 2, 3], [2, 2, 1]], "int32")
ROWS = {
    **{name: unary(name, VALUES) for name in ("Cos", "Elu", "Erf", "Erfc", "Exp", "Floor", "Relu", "Tanh")},
    **{name: unary(name, VALUES) for name in ("Sigmoid", "Sin")},
    **{name: unary(name, VALUES, CUBES) for name in ("Softmax",)},
    **{name: unary(name, POSITIVE) for name in ("Log", "Sqrt", "Rsqrt")},
    **{name: unary(name, VALUES, ROWS_3) for name in ("Abs", "Neg", "Square")},
    **{
        name: binary(name, (VALUES, OTHERS), (ROWS_3, DIVISORS))
        for name in ("Add", "AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference", "FloorDiv", "FloorMod")
    },
    **{
        name: binary(name, (VALUES, OTHERS), (ROWS_3, -ROWS_3))
        for name in ("Equal", "Less", "LessEqual", "Greater", "GreaterEqual")
    },
    **{name: reduction(name) for name in ("Mean", "Prod", "Sum", "Max", "Min")},
    **{name: [(lambda x, name=name: getattr(RAW, name)(input=x), CUBES)] for name in ("Identity", "StopGradient")},
    "IdentityN": [(lambda x, y: RAW.IdentityN(input=[x, y]), VALUES, ROWS_3)],
    "All": reduction("All", CUBES > -1),
    "AvgPool": pooling("AvgPool"),
    "BatchMatMulV2": [
        *product("BatchMatMulV2", "adj_x", "adj_y", CUBES, CUBES[:1].transpose(0, 2, 1)),
        (lambda x, y: tf.matmul(x[:, None], y[:, None], transpose_b=True), CUBES, CUBES + 1),
    ],
    "BiasAdd": [(lambda x: RAW.BiasAdd(value=x, bias=tf.constant([1.0, 2.0, 3.0, 4.0])), x) for x in (VALUES, MAPS)],
    "BroadcastTo": [(lambda x: RAW.BroadcastTo(input=x[:, None], shape=[2, tf.shape(x)[0], 3, 4]), VALUES)],
    "Cast": [
        (lambda x, kinds=kinds: [RAW.Cast(x=x, DstT=kind) for kind in kinds], x)
        for x, kinds in (
            (VALUES, (tf.int32, tf.int64, tf.bool)),
            (ROWS_3, (tf.float32, tf.int64, tf.bool)),
            (BOOLS, (tf.float32, tf.int32)),
            (np.abs(ROWS_3).astype("uint8"), (tf.float32, tf.int32)),
        )
    ],
    "ConcatV2": [
        (lambda x, y, axis=axis: RAW.ConcatV2(values=[x, y, x], axis=axis), VALUES, OTHERS) for axis in (0, 1, -1, -2)
    ],
    "Conv2D": convolutions(),
    "Conv2DBackpropInput": transposed(),
    "DepthwiseConv2dNative": depthwise(),
    "Einsum": [
        (lambda x, y, text=text: RAW.Einsum(inputs=[x, y], equation=text), CUBES, CUBES + 1)
        for text in ("bij,bkj->bik", "bij,bij->b", "...j,...j->...j", "bij,cij->bc")
    ],
    "ExpandDims": [(lambda x, axis=axis: RAW.ExpandDims(input=x, axis=axis), VALUES) for axis in (0, 2, -1, -2)],
    "Fill": [(lambda x: [RAW.Fill(dims=tf.shape(x), value=value) for value in (1.5, 2, True)], VALUES)],
    "GatherV2": [
        *[(lambda x, y, n=n: tf.gather(x, y, batch_dims=n, axis=n), CUBES, INDEX) for n in (1,)],
        *[(lambda x, y, n=n: tf.gather(x, y, axis=n), CUBES, INDEX) for n in (1, -1, 2)],
        (lambda x, y: tf.gather(x, y[0, 0], axis=1), CUBES, INDEX),
        (lambda y: tf.gather(tf.constant(CUBES[0]), y), INDEX),
        (lambda x, y: tf.gather(x, y[..., None], batch_dims=2, axis=2), CUBES[:, :3], INDEX),
    ],
    "LogicalAnd": binary("LogicalAnd", (BOOLS, ROWS_3 > 0)),
    "MatMul": product("MatMul", "transpose_a", "transpose_b", VALUES[:, :3], OTHERS[:, :3]),
    "MaxPool": pooling("MaxPool"),
    "OneHot": [
        (lambda x, row=row: RAW.OneHot(indices=x, depth=4, **row), ROWS_3)
        for row in (
            {"on_value": 1.0, "off_value": 0.0, "axis": -1},
            {"on_value": 2.5, "off_value": -1.0, "axis": 1},
            {"on_value": 5, "off_value": 7, "axis": 0},
        )
    ],
    "Pack": [(lambda x, y, axis=axis: RAW.Pack(values=[x, y], axis=axis), VALUES, OTHERS) for axis in (0, 1, -1, -2)],
    "Pad": [(lambda x: RAW.Pad(input=x, paddings=[[0, 0], [2, 1]]), x) for x in (VALUES, ROWS_3)]
    + [(lambda x: RAW.Pad(input=x, paddings=[[0, 0], [0, 7 - tf.shape(x)[1]]]), VALUES)],
    "PadV2": [(lambda x: RAW.PadV2(input=x, paddings=[[0, 0], [2, 1], [0, 3]], constant_values=-1.5), CUBES)],
    "Pow": binary("Pow", (POSITIVE, OTHERS)),
    "Range": [
        (lambda x: RAW.Range(start=1, limit=tf.shape(x)[1] * 3, delta=2), VALUES),
        (lambda x: RAW.Range(start=tf.shape(x)[1], limit=-3, delta=-2), VALUES),
        (lambda x: RAW.Range(start=0.5, limit=tf.cast(tf.shape(x)[1], tf.float32), delta=0.75), VALUES),
    ],
    "RealDiv": binary("RealDiv", (VALUES, OTHERS)),
    "Reshape": [(lambda x: RAW.Reshape(tensor=x, shape=[-1, 2, 10]), CUBES)]
    + [(lambda x: RAW.Reshape(tensor=x, shape=[tf.shape(x)[0], -1]), CUBES)],
    "SelectV2": [(lambda c, x, y: RAW.SelectV2(condition=c, t=x, e=y), BOOLS, VALUES, OTHERS)]
    + [(lambda c, x: RAW.SelectV2(condition=c, t=x, e=-1e9), BOOLS, VALUES)],
    "Shape": [(lambda x, kind=kind: RAW.Shape(input=x, out_type=kind), MAPS) for kind in (tf.int32, tf.int64)],
    "Split": [(lambda x, n=n, axis=axis: tf.split(x, n, axis), EVEN) for n, axis in ((2, 1), (3, -2), (1, -1), (4, 3))],
    "SplitV": [(lambda x, sizes=sizes: tf.split(x, sizes, -1), CUBES) for sizes in ([1, 4], [2, 1, 2], [5], [1, -1])],
    "Squeeze": [
        (lambda x, axes=axes: RAW.Squeeze(input=x[:, None, :, None], axis=axes), VALUES)
        for axes in ([1], [-1], [-3, 3])
    ],
    "StridedSlice": slices(),
    "Tile": [
        (lambda x: RAW.Tile(input=x, multiples=[1, 3]), VALUES),
        (lambda x: tf.tile(x, [tf.shape(x)[1], 1]), VALUES),
    ],
    "TopKV2": [(lambda x, k=k: RAW.TopKV2(input=x, k=k), CUBES) for k in (1, 3)],
    "Transpose": [(lambda x, order=order: tf.transpose(x, order), MAPS) for order in ([0, 3, 1, 2], [2, 0, 3, 1])],
    "Unpack": [(lambda x, axis=axis: tf.unstack(x, axis=axis), CUBES) for axis in (1, -1)],
    "ZerosLike": [
        (lambda x: RAW.ZerosLike(x=x), x) for x in (np.where(BOOLS, np.float32(np.inf), VALUES), ROWS_3, BOOLS)
    ],
}


def traced(call, *arrays):
    """The graph of a function of arrays of which the first side is open, and the names of its inputs."""
    names = [f"input_{place}" for place in range(len(arrays))]
    specs = [tf.TensorSpec((None, *array.shape[1:]), array.dtype) for array in arrays]
    return tf.compat.v1.wrap_function(call, specs), names


def named(calls, tensors):
    """All outputs of functions of the same tensors, as a dict."""
    outputs = {}
    for number, call in enumerate(calls):
        answer = call(*tensors)
        answer = list(answer) if isinstance(answer, (list, tuple)) else [answer]
        outputs |= {f"case {number}, output {place}": tensor for place, tensor in enumerate(answer)}
    return outputs


def doubled(outputs):
    return {key: x * 2.0 if x.dtype == tf.float32 else x for key, x in outputs.items()}


def fault_of(name, folder, is_half=False):
    """What a row shows: outputs of another dtype, shape or value than TensorFlow's.

    With `is_half`, the operations are in float16 unless they cannot be.
    """
    share = 0.03 if is_half else 2e-6
    groups = {}  # the cases with the same arrays are one graph
    for call, *arrays in ROWS[name]:
        groups.setdefault(tuple(map(id, arrays)), (arrays, []))[1].append(call)
    for arrays, calls in groups.values():

        def whole(*tensors, calls=calls):
            if not is_half:
                return named(calls, tensors)
            tensors = doubled(dict(enumerate(tensors))).values()  # the inputs and outputs of a graph are float32
            return doubled(named(calls, tensors))

        try:
            function, names = traced(whole, *arrays)
            assert name in {operation.type for operation in reachable(function.outputs)}
            graph = onnx_graph.onnx_graph(function, names)
            if is_half:
                onnx_float16.to_float16(graph, {})
            graph.save(folder, {})
            session = onnxruntime.InferenceSession(folder / "model.onnx")
            keys = [output.name for output in session.get_outputs()]
            for count in (3, 1):
                given = [np.ascontiguousarray(array[:count]) for array in arrays]
                expected = whole(*map(tf.constant, given))
                assert keys == list(expected)
                found = session.run(keys, dict(zip(names, given, strict=True)))
                for key, value in zip(keys, found, strict=True):
                    wanted = expected[key].numpy()
                    limits = {"rtol": 0.01 if is_half else 1e-5, "atol": share}
                    np.testing.assert_allclose(value, wanted, **limits, err_msg=key)
                    assert value.dtype == wanted.dtype and value.shape == wanted.shape, key
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:400]}"
    return None


def test_the_table_has_these_rows():
    assert set(ROWS) == set(OPERATIONS)


def test_they_compute_what_tensorflow_does(tmp_path):
    assert_no_faults(functools.partial(fault_of, folder=tmp_path), {name: name for name in ROWS})


@pytest.mark.slow
def test_they_compute_the_same_in_float16(tmp_path):
    assert_no_faults(functools.partial(fault_of, folder=tmp_path, is_half=True), {name: name for name in ROWS})


@for_each(
    "call, array, message",
    [
        (lambda x: tf.cumsum(x, 1), CUBES, "model must use operations that ONNX has; got Cumsum, Cumsum"),
        (tf.function(tf.square), CUBES, "got (Stateful)?PartitionedCall, "),
        (lambda x: tf.square(tf.cast(x, tf.float64)), CUBES, "tensors must be of float32, .*float64"),
        (lambda x: tf.cast(tf.square(tf.cast(x, tf.bfloat16)), tf.float32), CUBES, "tensors must be of .*bfloat16"),
        (lambda x: x, CUBES.astype("float16"), "tensors must be of .*float16"),
        (lambda x: tf.reduce_sum(x, tf.shape(x)[0] - 1), CUBES, "must be a constant in ONNX; it depends on the input"),
        (lambda x: tf.gather(x, INDEX[:, None] * 0, batch_dims=1, axis=2), CUBES, "axis and batch_dims must be equal"),
        (
            lambda x: RAW.BiasAdd(value=x, bias=[1.0] * 4, data_format="NCHW"),
            CUBES,
            "data_format must be NHWC; got NCHW",
        ),
        (
            lambda x: RAW.AvgPool(value=x, ksize=[1] * 4, strides=[1] * 4, padding="SAME", data_format="NCHW"),
            MAPS,
            "NHWC",
        ),
    ],
)
def test_what_has_no_rule_is_an_error(call, array, message):
    function, names = traced(lambda x: {"output": call(x)}, array)
    with pytest.raises(ValueError, match=message):
        onnx_graph.onnx_graph(function, names)
