"""The formats of `keras_vit.export`: a table with the check and the writer of each, and the single-file writers.

ONNX, LiteRT and OpenVINO are written with Keras's exporters and the runtimes' tools. Their input `images` is pixels at
the model's size, float32 (batch, height, width, channels) on [0, 255]; the graph standardises them and returns `logits`
(`scores`, if the model ends in an activation). The caller resizes the images.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import importlib.util
import os
import shutil
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_vit.config.base import one_of
from keras_vit.layers.forms import CONVERTER, written_for
from keras_vit.models import ImageModel, check_not_quantized, with_dtype
from keras_vit.models.derived import of_pixels
from keras_vit.serving.saved_model import OPTIONS, check_saved_model, quiet, write_saved_model
from keras_vit.serving.signatures import class_scores


@dataclasses.dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        check: function of a model, the names of the given options and all options; it raises an error on invalid ones.
        write: function of a model, a folder that does not exist yet and the options.
        options: dict from the name of an option to its default and its check.
        packages: modules that are needed to write the format.
        runtime: module that runs the export for the comparison.
    """

    check: collections.abc.Callable
    write: collections.abc.Callable
    options: dict
    packages: tuple = ()
    runtime: str = "tensorflow"


def resolve_options(format, given):
    """Return the options of a format: the given values that are not None, and defaults for the others.

    Raises:
        ValueError: on an option that the format does not have, or an invalid value.
    """
    known = FORMATS[format].options
    for name, value in given.items():
        if value is not None and name not in known:
            owners = ", ".join(repr(other) for other, row in FORMATS.items() if name in row.options)
            raise ValueError(f"{name} is an option of format {owners}; got {name}={value!r} with format={format!r}")
    values = {name: default if given.get(name) is None else given[name] for name, (default, _) in known.items()}
    return {name: check(name, values[name]) for name, (_, check) in known.items()}


def check_packages(format, options, is_checked):
    """Raise an `ImportError` with the install command if a package to write or compare a format is missing."""
    needed = [*FORMATS[format].packages, *([FORMATS[format].runtime] if is_checked else [])]
    if format == "openvino" and options["quantization"] is not None:
        needed.append("nncf")
    missing = [name for name in dict.fromkeys(needed) if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"format={format!r} needs {', '.join(missing)}: pip install {' '.join(missing)}")


def _check_float(model, given, *, quantization):
    """Raise a `ValueError` for a model that is already quantised."""
    check_not_quantized(model, "format='litert' or 'openvino', which take float models")


def _check_calibration(model, given, *, quantization, calibration):
    """Raise as `_check_float` does, and on missing or unnecessary calibration images."""
    _check_float(model, given, quantization=quantization)
    if (quantization is None) != (calibration is None):
        raise ValueError(
            "calibration must be typical images for quantization='int8', and None otherwise; "
            f"got quantization={quantization!r} with{'out' if calibration is None else ''} calibration"
        )


def _write_onnx(model, folder):
    """Write `model.onnx` with Keras and tf2onnx."""
    _teach_tf2onnx()
    os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")  # otherwise tf2onnx copies the graph before each pass
    with warnings.catch_warnings():  # Keras reads a NumPy attribute for tf2onnx, and NumPy warns
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        _export(model, folder / "model.onnx", format="onnx")


def _write_litert(model, folder, *, quantization):
    """Write `model.tflite` with Keras and TensorFlow's converter; int8 quantises the weights (dynamic range)."""
    options = {} if quantization is None else {"optimizations": [tf.lite.Optimize.DEFAULT]}
    _export(model, folder / "model.tflite", format="litert", **options)


def _write_openvino(model, folder, *, quantization, calibration):
    """Write `model.xml` and `model.bin` from Keras's SavedModel; int8 quantises weights and activations with NNCF.

    `calibration` is float32 (images, height, width, channels) on [0, 255], or None.
    """
    saved = folder / "saved_model"
    _export(model, saved, format="tf_saved_model")
    import openvino

    graph = openvino.convert_model(saved)
    if quantization is not None:
        graph = _quantized(graph, calibration)
    openvino.save_model(graph, str(folder / "model.xml"), compress_to_fp16=False)
    shutil.rmtree(saved)


def _quantized(graph, calibration):
    """Quantise the graph to int8 with SmoothQuant (arXiv 2211.10438).

    With NNCF's default alpha of 0.95 for MatMul, 189 of 200 images kept their class in a ViT-Ti/16; with 0.75, 197.
    """
    import nncf

    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=0.75)
    with _without_bars():
        return nncf.quantize(
            graph,
            nncf.Dataset(list(calibration[:, None])),  # batches of one image
            subset_size=len(calibration),
            model_type=nncf.ModelType.TRANSFORMER,
            advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=smoothing),
        )


@contextlib.contextmanager
def _without_bars():
    """Silence NNCF's progress bars, which cannot be switched off and cause warnings in notebooks."""
    import rich  # installed with NNCF, which uses its console

    console = rich.get_console()
    before = console.quiet, console.is_jupyter
    console.quiet, console.is_jupyter = True, False
    try:
        yield
    finally:
        console.quiet, console.is_jupyter = before


def _export(model, path, **options):
    """Export the model with Keras, in float32 and with its standardisation in front."""
    path.parent.mkdir()
    if isinstance(model, ImageModel) and {model.dtype_policy.name, model.config.dtype} != {"float32"}:
        model = with_dtype(model, "float32")
    images = keras.Input(model.input_shape[1:], dtype="float32", name="images")
    named = keras.Model(images, {class_scores(model): of_pixels(model, dtype="float32")(images)}, name="outputs")
    # Keras can only export models that were called
    named(np.zeros((1, *model.preprocessing.image_size, model.input_shape[-1]), np.float32))
    with written_for(CONVERTER), quiet():
        named.export(str(path), verbose=False, **options)


@functools.cache
def _teach_tf2onnx():
    """Register erfc(x) = 1 - erf(x) for tf2onnx: TensorFlow's exact GELU uses Erfc, but ONNX has only Erf.

    Delete this when tf2onnx supports Erfc; tests/serving/test_erfc.py then fails.
    """
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


_QUANTIZATION = {"quantization": (None, one_of((None, "int8")))}
_CALIBRATION = {"calibration": (None, lambda name, images: images)}  # `export` reads the images

FORMATS = {
    "saved_model": Format(check_saved_model, write_saved_model, OPTIONS),
    "onnx": Format(lambda model, given: None, _write_onnx, {}, ("tf2onnx",), "onnxruntime"),
    "litert": Format(_check_float, _write_litert, _QUANTIZATION, runtime="ai_edge_litert"),
    "openvino": Format(
        _check_calibration, _write_openvino, {**_QUANTIZATION, **_CALIBRATION}, ("openvino",), "openvino"
    ),
}
