"""A model as one graph of TensorFlow operations, for converters, and the largest values inside it."""

import numpy as np
import tensorflow as tf

from keras_vit.layers.forms import CONVERTER, written_for
from keras_vit.models import TaskModel
from keras_vit.models.derived import of_pixels
from keras_vit.serving.self_check import graph_inputs
from keras_vit.serving.signatures import class_scores
from keras_vit.serving.tasks import array_specs, call_arrays

LIMIT = 30_000  # of the values that are computed in float16, which ends at 65,504


def trace(model):
    """Return a function of TensorFlow with the graph of a model, and the names of its inputs.

    Args:
        model: classifier, encoder or task model, in float32; the inputs are as in `graph_inputs`.
    """
    is_task = isinstance(model, TaskModel)
    if not is_task:
        pixels, name = of_pixels(model, dtype="float32"), class_scores(model)
    specs = array_specs(model) if is_task else {"images": tf.TensorSpec((None, *pixels.input_shape[1:]), tf.float32)}

    def call(*arrays):
        arrays = dict(zip(specs, arrays, strict=True))
        with written_for(CONVERTER):
            return call_arrays(model, arrays) if is_task else {name: pixels(arrays["images"], training=False)}

    return tf.compat.v1.wrap_function(call, list(specs.values())), list(specs)


def reachable(outputs):
    """Return the operations on which tensors depend, inputs first."""
    found, stack = {}, [tensor.op for tensor in outputs]
    while stack:
        operation = stack.pop()
        before = [tensor.op for tensor in operation.inputs if tensor.op not in found]
        if before:
            stack += [operation, *before]
        else:
            found[operation] = None
    return list(found)


def largest_values(traced, model, images):
    """Return {name of an operation: largest magnitude of its outputs}.

    Args:
        traced: function of `trace`.
        model: its model.
        images: list of arrays, uint8 (height, width, channels).
    """
    tensors = [x for operation in reachable(traced.outputs) for x in operation.outputs if x.dtype == tf.float32]
    with traced.graph.as_default():
        peaks = tf.stack([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])
    inputs = [list(graph_inputs(model, image).values()) for image in images]
    measure = traced.prune(traced.inputs[: len(inputs[0])], peaks)
    values = np.max([measure(*map(tf.constant, arrays)) for arrays in inputs], axis=0)
    largest = {}
    for tensor, value in zip(tensors, values, strict=True):
        largest[tensor.op.name] = max(float(value), largest.get(tensor.op.name, 0.0))
    return largest
