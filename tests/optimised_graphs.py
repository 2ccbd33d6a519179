"""What TensorFlow makes of a graph before it runs it on this processor."""

import collections

import keras
import pytest


def needs_onednn():
    """Mark of a test of fusions that only TensorFlow with oneDNN knows."""
    return pytest.mark.skipif(not _has_onednn(), reason="TensorFlow without oneDNN fuses nothing")


def _has_onednn():
    if keras.backend.backend() != "tensorflow":
        return False
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()


def optimised_operations(function, *arguments):
    """Counter of the operations that run when `function` of tensors is compiled, with what they fuse."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    compiled = tf.function(function, autograph=False).get_concrete_function(
        *(tf.TensorSpec([None, *argument.shape[1:]], argument.dtype) for argument in arguments)
    )
    context.context().enable_run_metadata()
    try:
        compiled(*map(tf.constant, arguments))
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    operations = collections.Counter()
    for graph in metadata.function_graphs:
        for node in graph.post_optimization_graph.node:
            operations[(node.op, *(name.decode() for name in node.attr["fused_ops"].list.s))] += 1
    return operations
