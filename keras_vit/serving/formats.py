"""The formats of `keras_vit.export`: a table with the check and the writer of each, and the single-file writers.

In a file, the input `images` of a classifier or encoder is pixels at the model's size, float32 (batch, height, width,
channels) on [0, 255]; the graph standardises them and returns `logits` (`scores`, if the model ends in an activation),
or `features` of an encoder. The caller resizes the images. A task model has the inputs of `tasks.array_specs`.
"""

import collections.abc
import contextlib
import dataclasses
import importlib.util

import keras
import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.config.base import one_of
from keras_vit.layers.forms import CONVERTER, written_for
from keras_vit.logs import LOGGER
from keras_vit.models import ImageModel, TaskModel, check_not_quantized, with_dtype
from keras_vit.models.derived import of_pixels
from keras_vit.serving.saved_model import OPTIONS, check_saved_model, quiet, write_saved_model
from keras_vit.serving.self_check import graph_inputs
from keras_vit.serving.signatures import class_scores

_LARGE_PAGE = 100  # MB that visitors download; above, int8 instead of float16 if there are images to calibrate it


@dataclasses.dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        check: function of a model, the names of the given options and all options; it raises an error on invalid ones.
        write: function of a model, a folder that does not exist yet and the options.
        options: dict from the name of an option to its default and its check.
        choose: function of a model and its options that returns them with what the user has left open.
        packages: modules that are needed to write the format.
        runtime: module that runs the export for the comparison.
    """

    check: collections.abc.Callable
    write: collections.abc.Callable
    options: dict
    choose: collections.abc.Callable = lambda model, options: options
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
    if format != "litert" and options.get("quantization") is not None:
        needed.append("nncf")
    missing = [name for name in dict.fromkeys(needed) if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"format={format!r} needs {', '.join(missing)}: pip install {' '.join(missing)}")


def _check_float(model, given, *, quantization):
    """Raise a `ValueError` for a model that is already quantised."""
    check_not_quantized(model, "a format other than 'saved_model', as they take float models")


def _check_precision(model, given, *, compute_dtype, quantization, calibration, **options):
    """Raise as `_check_float` does, on two precisions, and on missing or unnecessary calibration images."""
    _check_float(model, given, quantization=quantization)
    if quantization and compute_dtype:
        found = f"compute_dtype={compute_dtype!r} and quantization={quantization!r}"
        raise ValueError(f"compute_dtype must be None with quantization; got {found}")
    if (quantization is None) != (calibration is None):
        raise ValueError(
            "calibration must be typical images for quantization='int8', and None otherwise; "
            f"got quantization={quantization!r} with{'out' if calibration is None else ''} calibration"
        )


def _write_onnx(model, folder, *, quantization, calibration, **options):
    """Write `model.onnx`; int8 quantises weights and activations with NNCF."""
    import onnx

    from keras_vit.serving.onnx_file import write_onnx

    write_onnx(_in_float32(model), folder, **options)
    if quantization is not None:
        path = folder / "model.onnx"
        onnx.save(_unsigned(_quantized(onnx.load(path), model, calibration)), path)
        (folder / "model.onnx.data").unlink(missing_ok=True)  # weights of the float model, if it is large


def _unsigned(model):
    """Return an int8 model of ONNX with uint8 activations, of which ONNX Runtime computes more products in integers."""
    import onnx

    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT8 and not tensor.dims:  # the zero point of an activation
            point = onnx.numpy_helper.to_array(tensor).astype(np.int16) + 128
            tensor.CopyFrom(onnx.numpy_helper.from_array(point.astype(np.uint8), tensor.name))
    model.graph.ClearField("value_info")  # which states int8
    return model


def _check_web(model, given, *, runtime, **options):
    """Raise as `_check_precision` does, and on a model whose output no page shows."""
    _check_precision(model, given, **options)
    if isinstance(model, TaskModel) or len(model.output_shape) != 2:
        found = f"{model.name}, a {type(model).__name__} with output {model.output_shape}"
        raise ValueError(f"model must return scores or features, a row per image, for format='web'; got {found}")


def _page_precision(model, options):
    """Return the options of a page; without a precision, it is int8 for a large model with calibration images."""
    if options["compute_dtype"] or options["quantization"]:
        return options
    size = 2e-6 * model.count_params()
    is_int8 = size > _LARGE_PAGE and options["calibration"] is not None
    LOGGER.info("The page gets %s, as its model has %.0f MB in float16", "int8" if is_int8 else "float16", size)
    return {**options, **({"quantization": "int8"} if is_int8 else {"compute_dtype": "float16"})}


def _write_web(model, folder, *, runtime, **options):
    """Write `model.onnx` and the page around it."""
    from keras_vit.serving.web import write_page

    _write_onnx(model, folder, **options)
    write_page(model, folder, runtime)


def _write_litert(model, folder, *, quantization):
    """Write `model.tflite` with Keras and TensorFlow's converter; int8 quantises the weights (dynamic range)."""
    options = {} if quantization is None else {"optimizations": [tf.lite.Optimize.DEFAULT]}
    folder.mkdir()
    model = _in_float32(model)
    images = keras.Input(model.input_shape[1:], dtype="float32", name="images")
    named = keras.Model(images, {class_scores(model): of_pixels(model, dtype="float32")(images)}, name="outputs")
    # Keras can only export models that were called
    named(np.zeros((1, *model.preprocessing.image_size, model.input_shape[-1]), np.float32))
    with written_for(CONVERTER), quiet():
        named.export(str(folder / "model.tflite"), format="litert", verbose=False, **options)


def _write_openvino(model, folder, *, quantization, calibration, **options):
    """Write `model.xml` and `model.bin` from an ONNX file; int8 quantises weights and activations with NNCF."""
    import openvino

    from keras_vit.serving.onnx_file import write_onnx

    write_onnx(_in_float32(model), folder, **options)
    graph = openvino.convert_model(folder / "model.onnx")
    if quantization is not None:
        graph = _quantized(graph, model, calibration)
    openvino.save_model(graph, str(folder / "model.xml"), compress_to_fp16=False)
    for path in folder.glob("model.onnx*"):
        path.unlink()


def _in_float32(model):
    """Return the model, or a copy of it in float32."""
    is_other = isinstance(model, ImageModel) and {model.dtype_policy.name, model.config.dtype} != {"float32"}
    return with_dtype(model, "float32") if is_other else model


def _quantized(graph, model, calibration):
    """Quantise the graph of a model to int8 with SmoothQuant (arXiv 2211.10438).

    `calibration` is a list of images, uint8 (height, width, channels).

    With NNCF's default alpha of 0.95 for MatMul, 189 of 200 images kept their class in a ViT-Ti/16; with 0.75, 197.
    """
    import nncf

    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=0.75)
    with _without_bars():
        return nncf.quantize(
            graph,
            nncf.Dataset([graph_inputs(model, image) for image in calibration]),
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


_QUANTIZATION = {"quantization": (None, one_of((None, "int8")))}
_PRECISION = {
    "compute_dtype": (None, one_of((None, "float32", "float16"))),
    **_QUANTIZATION,
    "calibration": (None, lambda name, images: images),  # `export` reads the images
}
_RUNTIME = {"runtime": (None, lambda name, folder: None if folder is None else str(checks.check_path(name, folder)))}

FORMATS = {
    "saved_model": Format(check_saved_model, write_saved_model, OPTIONS),
    "onnx": Format(_check_precision, _write_onnx, _PRECISION, packages=("onnx",), runtime="onnxruntime"),
    "litert": Format(_check_float, _write_litert, _QUANTIZATION, runtime="ai_edge_litert"),
    "openvino": Format(
        _check_precision, _write_openvino, _PRECISION, packages=("onnx", "openvino"), runtime="openvino"
    ),
    "web": Format(
        _check_web, _write_web, {**_PRECISION, **_RUNTIME}, _page_precision, packages=("onnx",), runtime="onnxruntime"
    ),
}
