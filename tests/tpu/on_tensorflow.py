"""What a TPU gets of the steps of small_steps.py by way of TensorFlow, printed as JSON.

With KERAS_BACKEND=tensorflow:

    python on_tensorflow.py lower FOLDER NAME...    files of StableHLO, for libtpu's compiler
    python on_tensorflow.py kernels NAME...         the operations of each step for which no TPU has a kernel

The first is for the stock wheel, as XLA of the wheel for TPUs cannot run on a CPU; the second is for that one.
"""

import json
import pathlib
import sys

import tensorflow as tf
from small_steps import STEPS
from tensorflow.python.framework import kernels as registry

_FEEDS = {"Placeholder"}  # the arguments of the step


def lower(folder, *names):
    files = {}
    for index, name in enumerate(names):
        function, batch = _function(STEPS[name]())
        files[name] = str(pathlib.Path(folder) / f"{index}.stablehlo")
        module = function.experimental_get_compiler_ir(*batch)(stage="stablehlo_serialized")
        pathlib.Path(files[name]).write_bytes(module)
    return files


def kernels(*names):
    return {name: sorted(filter(_lacks_kernel, _operations(*_function(STEPS[name]())))) for name in names}


def _function(step):
    """The training step as a function of TensorFlow, and a batch for it."""
    model, batch = step.model, (tf.zeros(*step.images), tf.zeros(*step.labels))
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=batch)
    return tf.function(lambda images, labels: model.train_step((images, labels)), jit_compile=True), batch


def _operations(function, batch):
    graph = function.get_concrete_function(*batch).graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    nodes = [*graph.node, *(node for function in functions.values() for node in function.node_def)]
    return {node.op for node in nodes} - set(functions) - _FEEDS


def _lacks_kernel(operation):
    found = registry.get_registered_kernels_for_op(operation).kernel
    return all(kernel.device_type != "XLA_TPU_JIT" for kernel in found)


if __name__ == "__main__":
    actions = {"lower": lower, "kernels": kernels}
    print(json.dumps(actions[sys.argv[1]](*sys.argv[2:])))
