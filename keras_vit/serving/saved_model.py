"""A model as a SavedModel folder for TensorFlow Serving: signatures, labels, warm-up requests, instructions."""

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.analysis import rollout_model
from keras_vit.data import preprocessing as ops
from keras_vit.models import check_not_quantized, with_dtype
from keras_vit.serving.instructions import instructions, server_name
from keras_vit.serving.quiet import without_notes
from keras_vit.serving.rows import ERROR_CHOICES
from keras_vit.serving.samples import sample_files
from keras_vit.serving.signatures import SIGNATURES, class_labels, make_signatures
from keras_vit.serving.warmup import write_warmup

COMPUTE_DTYPES = {None: None, "float32": "float32", "bfloat16": "mixed_bfloat16"}


# option -> the signatures that use it
_OF_FILES = tuple(name for name, takes in SIGNATURES.items() if takes == tf.string)
_BELONGS_TO = {"top": ("serving_default",), "tokens": ("features",), "on_error": _OF_FILES, "max_pixels": _OF_FILES}


def check_saved_model(model, given, *, signatures, top, tokens, on_error, max_pixels, jit_compile, compute_dtype):
    """Raise a `ValueError` or `TypeError` on an invalid option before anything is written.

    `given` contains the options that are not defaults; those without effect raise an error.
    """
    if not isinstance(signatures, (list, tuple)) or not signatures:
        raise ValueError(f"signatures must be a list of at least one of {', '.join(SIGNATURES)}; got {signatures!r}")
    for name in signatures:
        checks.check_choice("signatures", name, SIGNATURES)
    checks.check_integer("top", top)
    checks.check_flag("tokens", tokens)
    for option, owners in _BELONGS_TO.items():
        if option in given and not set(owners) & set(signatures):
            raise ValueError(f"{option} belongs to the signatures {owners}; got signatures={tuple(signatures)}")
    checks.check_choice("on_error", on_error, ERROR_CHOICES)
    checks.check_integer("max_pixels", max_pixels)
    checks.check_flag("jit_compile", jit_compile)
    checks.check_choice("compute_dtype", compute_dtype, COMPUTE_DTYPES)
    if compute_dtype is not None:
        check_not_quantized(model, f"compute_dtype={compute_dtype!r}")
    if "attention" in signatures:
        rollout_model(model)  # raises if the model has no global attention


def write_saved_model(model, folder, *, signatures, compute_dtype, **options):
    """Write the SavedModel of `model` into `folder`, a `pathlib.Path` that does not exist yet."""
    if COMPUTE_DTYPES[compute_dtype] is not None:
        model = with_dtype(model, COMPUTE_DTYPES[compute_dtype])
    # The module owns the bare variables, and the signatures close over the model. If the Keras model itself were
    # tracked, Python could load the SavedModel but the C API could not ("Could not find variable"). Keras's
    # ExportArchive writes every weight twice.
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    functions = make_signatures(model, signatures=tuple(dict.fromkeys(signatures)), **options)
    with without_notes():
        tf.saved_model.save(module, str(folder), signatures=functions)
    (folder / "assets" / "labels.txt").write_text("\n".join(class_labels(model)) + "\n", encoding="utf-8")
    name, max_pixels = server_name(model.name), options["max_pixels"]
    write_warmup(folder, name, {signature: _request(model, signature, max_pixels) for signature in functions})
    text = instructions(name, functions, on_error=options["on_error"], max_pixels=max_pixels)
    (folder / "README.txt").write_text(text, encoding="utf-8")


def _request(model, signature, max_pixels):
    """Return the inputs of a call with one image, a small one if the file contains its pixels."""
    first, *_, small = sample_files(4, max_pixels)
    if not signature.startswith("images"):
        return {"image_bytes": np.array([first], object)}
    image = ops.decode(tf.constant(small), model.preprocessing.channels)[None]
    return {"images": image if signature == "images_uint8" else tf.cast(image, tf.float32)}
