"""Erfc for tf2onnx: TensorFlow's exact GELU uses Erfc, but ONNX has only Erf.

Delete this file when tf2onnx supports Erfc; tests/serving/test_erfc.py then fails.
"""

import functools

import numpy as np


@functools.cache
def teach_tf2onnx():
    """Register the operation erfc(x) = 1 - erf(x)."""
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):  # the ONNX version that introduced Erf
            (shape,), (dtype,) = node.output_shapes, node.output_dtypes
            node.type = "Erf"
            (output,) = node.output
            one = ctx.make_const(f"{node.name}_one", np.array(1, np.float32)).output[0]
            difference = ctx.insert_new_node_on_output(
                "Sub", output, name=f"{node.name}_complement", inputs=[one, output]
            )
            ctx.set_shape(difference.output[0], shape)
            ctx.set_dtype(difference.output[0], dtype)
