"""float16 for a graph of ONNX: where 16 bits are enough, and float32 elsewhere.

Norms, softmax and what is computed for them alone stay in float32, and so does an operation that reads or returns a
value of 30,000 or more for the images it was tried on (float16 ends at 65,504). Models with outlier channels have them.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper

from keras_vit.logs import LOGGER
from keras_vit.serving.tracing import LIMIT

_SMALLEST = 6.2e-5  # smaller numbers have fewer digits in float16
# operations that need the range or the digits of float32
_WIDE: tuple[str, ...] = (
    *("LayerNormalization", "Softmax", "ReduceMean", "ReduceSum", "ReduceProd", "Exp", "Log", "Pow", "Sqrt"),
    *("Reciprocal", "Sin", "Cos", "Cast"),
    "Range",  # has no float16 in ONNX
)
_BEFORE = ("Add", "Sub", "Mul", "Neg", "Abs")  # are in float32 if only such operations read them


def to_float16(graph, largest):
    """Change a `Graph` to float16 where that is safe; its inputs and outputs stay float32.

    Args:
        graph: result of `onnx_graph.onnx_graph`.
        largest: result of `largest_values`.
    """
    wide = _wide_nodes(graph, largest)
    floats, given = _floats(graph), {value.name for value in graph.inputs}
    is_wide = {name: node.name in wide for node in graph.nodes for name in node.output} | dict.fromkeys(given, True)
    nodes, changed = [], {}

    def converted(name, wanted):
        """Return the name of a tensor in float32 (`wanted`) or float16."""
        if name not in floats or is_wide.get(name, True) == wanted:
            return name
        if (name, wanted) not in changed:
            changed[name, wanted] = f"{name}/float{32 if wanted else 16}"
            if name in graph.arrays:
                graph.arrays[changed[name, wanted]] = graph.arrays[name].astype(np.float16)
            else:
                kind = TensorProto.FLOAT if wanted else TensorProto.FLOAT16
                target = changed[name, wanted]
                nodes.append(helper.make_node("Cast", [name], [target], name=target, to=kind))
        return changed[name, wanted]

    for node in graph.nodes:
        node.input[:] = [converted(name, node.name in wide) for name in node.input]
        nodes.append(node)
    graph.nodes = nodes
    LOGGER.info("%d of %d operations stay in float32", len(wide), len(wide | {node.name for node in nodes}))


def _wide_nodes(graph, largest):
    """Return the names of the nodes that compute in float32."""
    readers, floats, peaks = {}, _floats(graph), {}
    outputs = {value.name for value in graph.outputs}
    for name in floats & set(graph.arrays):
        values = np.abs(graph.arrays[name])
        is_tiny = values.size == 1 and 0 < values.max() < _SMALLEST
        peaks[name] = LIMIT if is_tiny else values.max(initial=0)
    for node in graph.nodes:
        peaks |= dict.fromkeys(node.output, largest.get(node.name.rpartition("/")[0], 0.0))
    wide = set()
    for node in reversed(graph.nodes):
        values = [name for name in (*node.input, *node.output) if name in floats]
        is_read_wide = node.op_type in _BEFORE and readers.get(node.output[0], {""}) <= wide
        is_large = any(not peaks.get(name, 0.0) < LIMIT for name in values)
        if values and (node.op_type in _WIDE or is_read_wide or is_large or outputs & set(node.output)):
            wide.add(node.name)
        for name in node.input:
            readers.setdefault(name, set()).add(node.name)
    return wide


def _floats(graph):
    """Return the names of the float32 tensors of a graph of float32."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in graph.arrays.items()
    ]
    whole = onnx.shape_inference.infer_shapes(graph.proto(values)).graph
    known = (*whole.input, *whole.value_info, *whole.output)
    return {value.name for value in known if value.type.tensor_type.elem_type == TensorProto.FLOAT}
