"""A TensorFlow function as a graph of ONNX nodes, and its file.

Each operation becomes one node or a few (`onnx_operations`); a call that `forms.as_one_node` marked, such as a layer
norm or a GELU, becomes one. What depends on weights and constants alone is computed here once.
"""

import contextlib
import json

import numpy as np
import tensorflow as tf
from onnx import TensorProto, helper

from keras_vit.serving.onnx_operations import OPERATIONS, dtype_of
from keras_vit.serving.tracing import reachable

OPSET = 20  # the first with Gelu
_IR = 9  # version of the file format of this opset
_MAX_FILE = 2**31 - 2**24  # bytes; protocol buffers end at 2 GiB
_SMALL = 1024  # bytes; larger constants are not searched for equal ones, and may be beside the file
_WEIGHTS = "model.onnx.data"
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MARK = "_implements"  # attribute in which TensorFlow stores `experimental_implements`


class Graph:
    """A graph of ONNX nodes under construction. TensorFlow's int32 is int64 in it, as the shapes of ONNX are.

    Attributes:
        nodes: list of `onnx.NodeProto`.
        arrays: dict from the name of a constant to its array.
        inputs, outputs: lists of `onnx.ValueInfoProto`.
    """

    def __init__(self):
        self.nodes, self.arrays, self.inputs, self.outputs = [], {}, [], []
        self.scope, self._small, self._written = "", {}, {}

    def add(self, kind, *inputs, outputs=1, **attributes):
        """Append a node, unless there is an equal one, and return the name of its output, or a list of several.

        Args:
            kind: name of an operation of ONNX.
            *inputs: names of tensors, or constants: arrays, numbers or lists of integers.
            outputs: number of outputs.
            **attributes: those of the operation.
        """
        inputs = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        key = repr((kind, inputs, outputs, attributes))
        if key not in self._written:
            name = f"{self.scope}/{kind}_{len(self.nodes)}"
            names = [name] if outputs == 1 else [f"{name}:{place}" for place in range(outputs)]
            self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
            self._written[key] = names[0] if outputs == 1 else names
        return self._written[key]

    def constant(self, value, name=None):
        """Return the name of a constant; small constants that are equal have one name."""
        array = np.asarray(value, np.int64 if isinstance(value, list) else None)
        array = array.astype(np.int64) if array.dtype == np.int32 else array
        key = (array.dtype.str, array.shape, array.tobytes() if array.nbytes <= _SMALL else name or len(self.arrays))
        if key not in self._small:
            self._small[key] = name or f"constant_{len(self.arrays)}"
            self.arrays[self._small[key]] = array
        return self._small[key]

    def transposed(self, name, order):
        """Return the name of a transposed tensor or constant."""
        if name not in self.arrays:
            return self.add("Transpose", name, perm=order)
        return self.constant(np.transpose(self.arrays[name], order), f"{name}^{''.join(map(str, order))}")

    def proto(self, constants=()):
        """Return an `onnx.ModelProto` whose constants are inputs or still to be added.

        Args:
            constants: descriptions of inputs in place of constants.
        """
        graph = helper.make_graph(self.nodes, "model", [*self.inputs, *constants], self.outputs)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="keras_vit")

    def save(self, folder, metadata):
        """Write `model.onnx`, and above 2 GiB also `model.onnx.data` with the weights; release the constants.

        Args:
            folder: `pathlib.Path`.
            metadata: dict of strings for the metadata of the file.
        """
        used = {name for node in self.nodes for name in node.input} | {value.name for value in self.outputs}
        arrays = {name: array for name, array in self.arrays.items() if name in used}
        is_beside = sum(array.nbytes for array in arrays.values()) > _MAX_FILE
        model = self.proto()
        helper.set_model_props(model, metadata)
        with (folder / _WEIGHTS).open("wb") if is_beside else contextlib.nullcontext() as file:
            self.arrays.clear()
            while arrays:  # each array is released when it is in the file
                name, array = arrays.popitem()
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                tensor = model.graph.initializer.add(name=name, data_type=kind, dims=array.shape)
                if is_beside and array.nbytes > _SMALL:
                    tensor.data_location = TensorProto.EXTERNAL
                    place = {"location": _WEIGHTS, "offset": file.tell(), "length": array.nbytes}
                    for key, value in place.items():
                        tensor.external_data.add(key=key, value=str(value))
                    file.write(np.ascontiguousarray(array).data)
                else:
                    tensor.raw_data = array.tobytes()
        (folder / "model.onnx").write_bytes(model.SerializeToString())


def onnx_graph(traced, names):
    """Return the `Graph` of a traced function.

    Args:
        traced, names: results of `tracing.trace`.

    Raises:
        ValueError: on an operation or a dtype that has no rule.
    """
    graph, changing = Graph(), {}
    marks = {call.signature.name: call.attr for call in traced.graph.as_graph_def().library.function}
    known = {}  # name of a tensor of TensorFlow -> that in ONNX
    for tensor, name in zip(traced.inputs, names, strict=False):  # the variables follow
        graph.inputs.append(_described(name, tensor))
        known[tensor.name] = graph.add("Cast", name, to=TensorProto.INT64) if tensor.dtype == tf.int32 else name
    taken = dict.fromkeys(tensor.op for tensor in traced.inputs[: len(names)])
    for operation in reachable(traced.outputs):
        if any(tensor.op in taken or tensor.op in changing for tensor in operation.inputs):
            changing[operation] = None
    for name, array in _constants(traced, taken | changing).items():
        known[name] = graph.constant(array, name.removesuffix(":0"))
    for operation in changing:
        graph.scope, rule, attributes = operation.name, OPERATIONS.get(operation.type), {}
        if operation.type in _CALLS:
            mark = marks[operation.get_attr("f").name]
            rule, attributes = json.loads(mark[_MARK].s) if _MARK in mark else (None, {})
        if rule is None:
            raise ValueError(f"model must use operations that ONNX has; got {operation.type}, {operation.name}")
        inputs = [known[tensor.name] for tensor in operation.inputs]
        outputs = graph.add(rule, *inputs, **attributes) if isinstance(rule, str) else rule(graph, operation, *inputs)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        known |= {tensor.name: name for tensor, name in zip(operation.outputs, outputs, strict=False)}
    for name, tensor in traced.structured_outputs.items():
        graph.outputs.append(_described(name, tensor))
        kind = "Cast" if tensor.dtype == tf.int32 else "Identity"
        to = {"to": TensorProto.INT32} if kind == "Cast" else {}
        graph.nodes.append(helper.make_node(kind, [known[tensor.name]], [name], name=name, **to))
    return graph


def _described(name, tensor):
    """Return an input or output of the graph; open sides of the same name must have the same length."""
    known = {"images": ("batch", "height", "width"), "queries": ("queries",)}.get(name, ("batch",))
    sides = dict(enumerate(known))
    shape = [side or sides.get(axis, f"{name}_{axis}") for axis, side in enumerate(tensor.shape)]
    dtype = TensorProto.INT32 if tensor.dtype == tf.int32 else dtype_of(tensor)
    return helper.make_tensor_value_info(name, dtype, shape)


def _constants(traced, changing):
    """Return the arrays that operations in `changing`, or the outputs, read and that depend on no input."""
    read = [tensor for operation in changing for tensor in operation.inputs] + traced.outputs
    read = {tensor.name: tensor for tensor in read if tensor.op not in changing and tensor.dtype != tf.resource}
    return {name: value.numpy() for name, value in zip(read, traced.prune([], list(read.values()))(), strict=True)}
