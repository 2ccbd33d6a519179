"""A model as a SavedModel folder for TensorFlow Serving: signatures, labels, warm-up requests, instructions."""

import contextlib
import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.analysis import rollout_model
from keras_vit.compat.graph import graph_calls, sublayers
from keras_vit.config.base import Check, one_of
from keras_vit.data import preprocessing as preparation
from keras_vit.evaluation.outputs import logit_names
from keras_vit.logs import LOGGER
from keras_vit.models import ImageModel, TaskModel, check_not_quantized, check_pools, with_dtype
from keras_vit.models.encoders import is_encoder
from keras_vit.serving.instructions import instructions, server_name
from keras_vit.serving.self_check import sample_files
from keras_vit.serving.signatures import DEFAULT_SIGNATURES, SIGNATURES, make_signatures
from keras_vit.serving.tasks import TASK_SIGNATURES, example_arrays, make_task_signatures
from keras_vit.serving.tracing import LIMIT, largest_values, trace

_COMPUTE_DTYPES = {None: None, "float32": "float32", "float16": "float16", "bfloat16": "mixed_bfloat16"}
_OF_FILES = tuple(name for name, (dtype, _) in SIGNATURES.items() if dtype == tf.string)
# option -> the signatures that use it
_BELONGS_TO = {
    **{"top": ("serving_default",), "tokens": ("features",), "native_pixels": ("native",)},
    **{"on_error": _OF_FILES, "max_pixels": _OF_FILES},
}


def _signatures(name, value):
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name} must be a list of at least one of {', '.join(SIGNATURES)}; got {value!r}")
    for each in value:
        checks.check_choice(name, each, SIGNATURES)
    return value


# option -> its default and its check
OPTIONS: dict[str, tuple[Any, Check]] = {
    "signatures": (DEFAULT_SIGNATURES, _signatures),
    "top": (5, checks.check_integer),
    "tokens": (False, checks.check_flag),
    "on_error": ("row", one_of(("row", "raise"))),
    "max_pixels": (64_000_000, checks.check_integer),
    "native_pixels": (2048 * 2048, checks.check_integer),
    "jit_compile": (False, checks.check_flag),
    "compute_dtype": (None, one_of(_COMPUTE_DTYPES)),
}


def check_saved_model(model, given, *, signatures, tokens, native_pixels, compute_dtype, **options):
    """Raise a `ValueError` or `TypeError` on options that contradict each other, before anything is written.

    `given` contains the options that the user has set; those without effect raise an error.
    """
    if isinstance(model, TaskModel):
        if others := sorted(given - {"max_pixels"}):
            raise ValueError(f"{others[0]} is an option for classifiers; got it for a {type(model).__name__}")
        return
    for option, owners in _BELONGS_TO.items():
        if option in given and not set(owners) & set(signatures):
            raise ValueError(f"{option} belongs to the signatures {owners}; got signatures={tuple(signatures)}")
    if not isinstance(model, ImageModel) and (compute_dtype or tokens):
        found = f"compute_dtype={compute_dtype!r} and tokens={tokens}"
        raise ValueError(f"compute_dtype and tokens are for models without layers around them; got {found}")
    if is_encoder(model) and "top" in given:
        raise ValueError(f"top must be None for a model without a head, as {model.name}; got top={options['top']}")
    if tokens:
        check_pools(model)
    if compute_dtype is not None:
        check_not_quantized(model, f"compute_dtype={compute_dtype!r}")
    if "native" in signatures:
        if not isinstance(model, ImageModel) or model.config.fixed_size or model.preprocessing.max_tokens:
            raise ValueError(f"signature 'native' needs image_size='any'; {model.name} takes {model.input_shape}")
        usual = model.preprocessing.image_size
        if native_pixels < usual[0] * usual[1]:
            raise ValueError(f"native_pixels must be at least those of the usual size, {usual}; got {native_pixels}")
    if "attention" in signatures:
        rollout_model(model)  # raises if the model has no global attention


def write_saved_model(model, folder, *, signatures, compute_dtype, samples=(), **options):
    """Write the SavedModel of `model` into `folder`, a `pathlib.Path` that does not exist yet.

    `samples` are images, a list of uint8 (height, width, channels), that show which layers float16 is enough for.
    """
    large = _large_layers(with_dtype(model, "float32"), samples) if compute_dtype == "float16" else ()
    if compute_dtype is not None:
        model = with_dtype(model, _COMPUTE_DTYPES[compute_dtype])
    for layer in [model.get_layer(name) for name in large]:
        for part in (layer, *sublayers(layer)):
            part.dtype_policy = keras.DTypePolicy("float32")  # the weights stay in float16
    # The module owns the bare variables, and the signatures close over the model. If the Keras model itself were
    # tracked, Python could load the SavedModel but the C API could not ("Could not find variable"). Keras's
    # ExportArchive writes every weight twice.
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    about, max_pixels = {name: text for name, (_, text) in SIGNATURES.items()}, options["max_pixels"]
    if isinstance(model, TaskModel):
        functions, about, on_error = make_task_signatures(model, max_pixels), TASK_SIGNATURES, "raise"
    else:
        functions = make_signatures(model, signatures=tuple(dict.fromkeys(signatures)), **options)
        about |= {"serving_default": about["features"]} if is_encoder(model) else {}
        on_error = options["on_error"]
    with quiet():
        tf.saved_model.save(module, str(folder), signatures=functions)
    if labels := logit_names(model):
        (folder / "assets" / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    name = server_name(model.name)
    _write_warmup(folder, name, {signature: _request(model, signature, max_pixels) for signature in functions})
    size = model.preprocessing.image_size
    text = instructions(name, functions, about, size, on_error=on_error, max_pixels=max_pixels)
    (folder / "README.txt").write_text(text, encoding="utf-8")


def _large_layers(model, samples):
    """Return the layers of a model that return or read values for which float16 is too small, by their names."""
    traced, _ = trace(model)
    scopes = "\n".join(name for name, value in largest_values(traced, model, samples).items() if not value < LIMIT)
    calls = graph_calls(model)
    names = [call.operation.name for call in calls]
    large = {name for name in names if re.search(rf"(?:^|/){re.escape(name)}(?:_\d+)?/", scopes, re.MULTILINE)}
    large |= {call.operation.name for call in calls if large & {node.operation.name for node in call.parent_nodes}}
    LOGGER.info("%d of %d layers stay in float32", len(large), len(names))
    return [layer for layer in large if layer in {one.name for one in model.layers}]


@contextlib.contextmanager
def quiet():
    """Silence TensorFlow's messages about output folders, because these folders are renamed or removed."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


def _request(model, signature, max_pixels):
    """Return the inputs of a call with one image, a small one if the request contains its pixels."""
    first, *_, small = sample_files(4, max_pixels)
    if signature == "arrays":
        small = preparation.decode(tf.constant(small), model.preprocessing.channels)
        return example_arrays(model, small.numpy())
    dtype, _ = SIGNATURES[signature]
    if dtype == tf.string:
        return {"image_bytes": np.array([first], object)}
    image = preparation.decode(tf.constant(small), model.preprocessing.channels)
    image = preparation.resize(model.preprocessing, image) if signature == "native" else image
    return {"images": tf.cast(image[None], dtype)}


def _write_warmup(folder, model_name, requests):
    """Write the requests that TensorFlow Serving runs before it accepts others, so that the first is not slow.

    They are a TFRecord of `tensorflow.serving.PredictionLog`. This function writes the wire format of protocol buffers
    itself, so that an export does not need tensorflow-serving-api; the test reads the file with that package.

    Args:
        folder: the SavedModel.
        model_name: name of the model on the server.
        requests: dict from the name of a signature to the dict of its inputs.
    """
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests.items():
            request = _field(1, _field(1, model_name.encode()) + _field(3, signature.encode()))  # model_spec
            for name, value in inputs.items():
                tensor = tf.make_tensor_proto(value).SerializeToString()
                request += _field(2, _field(1, name.encode()) + _field(2, tensor))  # inputs, a map
            writer.write(_field(6, _field(1, request)))  # predict_log, request


def _field(number, content):
    """Encode a field of a protocol buffer that is a string or a message: tag, length in groups of 7 bits, content."""
    length, rest = b"", len(content)
    while rest > 127:
        length, rest = length + bytes([rest % 128 + 128]), rest // 128
    return bytes([8 * number + 2]) + length + bytes([rest]) + content
