"""Export to one file for another runtime: ONNX, LiteRT, OpenVINO, with Keras's exporters and the runtimes' tools.

Each export accepts pixels at the model's size, float32 (batch, height, width, channels) on [0, 255], standardises them
and returns logits (scores, if the model ends in an activation). The caller resizes the images.
"""

import warnings

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.compat.kernels import CONVERTER, written_for
from keras_vit.models import check_not_quantized, with_dtype
from keras_vit.models.rescaled import of_pixels
from keras_vit.serving.erfc import teach_tf2onnx
from keras_vit.serving.outputs import class_scores
from keras_vit.serving.quiet import without_bars, without_notes

QUANTIZATIONS = (None, "int8")


def check_onnx(model, given):
    """Accept every model: there are no options, and quantised models are supported."""


def write_onnx(model, folder):
    """Write `model.onnx` with Keras and tf2onnx."""
    folder.mkdir()
    teach_tf2onnx()
    with warnings.catch_warnings():  # Keras reads a NumPy attribute for tf2onnx, and NumPy warns
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        _export(model, str(folder / "model.onnx"), format="onnx")


def check_litert(model, given, *, quantization):
    """Raise a `ValueError` on an unknown quantization, or a model that is already quantised."""
    checks.check_choice("quantization", quantization, QUANTIZATIONS)
    check_not_quantized(model, "format='litert', whose converter quantises itself")


def write_litert(model, folder, *, quantization):
    """Write `model.tflite` with Keras and TensorFlow's converter; int8 quantises the weights (dynamic range)."""
    folder.mkdir()
    options = {} if quantization is None else {"optimizations": [tf.lite.Optimize.DEFAULT]}
    _export(model, str(folder / "model.tflite"), format="litert", **options)


def check_openvino(model, given, *, quantization, calibration):
    """Raise as `check_litert` does, and on missing or unnecessary calibration images."""
    checks.check_choice("quantization", quantization, QUANTIZATIONS)
    check_not_quantized(model, "format='openvino', whose converter quantises itself")
    if quantization is not None and calibration is None:
        raise ValueError("calibration must be typical images for quantization='int8'; got None")
    if quantization is None and calibration is not None:
        raise ValueError("calibration requires quantization='int8'; got quantization=None")


def write_openvino(model, folder, *, quantization, calibration):
    """Write `model.xml` and `model.bin` with Keras; int8 quantises weights and activations with NNCF.

    `calibration` is float32 (images, height, width, channels) on [0, 255], or None.
    """
    folder.mkdir()
    path = str(folder / "model.xml")
    _export(model, path, format="openvino")
    import openvino

    graph = openvino.Core().read_model(path)
    for output in graph.outputs:
        if len(output.partial_shape) == 2 and output.element_type.is_real():
            output.tensor.set_names({class_scores(model)})
        else:  # an unused size inside a norm or of merged tokens, which the converter leaves as an output
            graph.remove_result(output.node)
    if quantization is not None:
        graph = _quantized(graph, calibration)
    # A memory-mapped file cannot be replaced.
    openvino.save_model(graph, str(folder / "new.xml"), compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        (folder / f"new{suffix}").replace(folder / f"model{suffix}")


def _quantized(graph, calibration):
    """Quantise the graph to int8 with SmoothQuant (arXiv 2211.10438).

    With NNCF's default of 0.95 for the activations, 189 of 200 images kept their class in a ViT-Ti/16; with 0.75, 197.
    """
    import nncf

    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=0.75)
    with without_bars():
        return nncf.quantize(
            graph,
            nncf.Dataset(list(calibration[:, None])),  # batches of one image
            subset_size=len(calibration),
            model_type=nncf.ModelType.TRANSFORMER,
            advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=smoothing),
        )


def _export(model, path, **options):
    """Export the model, with its standardisation, with Keras."""
    pixels = _of_pixels(model)
    with written_for(CONVERTER), without_notes():
        pixels.export(path, verbose=False, **options)


def _of_pixels(model):
    """Return the model in float32 with the standardisation in front."""
    if model.dtype_policy.name != "float32" or model.config.dtype != "float32":
        model = with_dtype(model, "float32")
    pixels = of_pixels(model, dtype="float32")
    pixels(np.zeros((1, *model.input_shape[1:]), np.float32))  # Keras can only export models that were called
    return pixels
