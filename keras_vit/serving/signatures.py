"""The signatures of an exported model as TensorFlow functions of encoded images or pixels."""

import contextlib
import functools

import tensorflow as tf

from keras_vit.compat.kernels import ONEDNN, written_for
from keras_vit.data import preprocessing as ops
from keras_vit.serving.outputs import class_scores, output_model
from keras_vit.serving.rows import read_rows

# signature -> dtype of its input: strings are encoded files, numbers are pixels
SIGNATURES = {
    "serving_default": tf.string,
    "images": tf.float32,
    "images_uint8": tf.uint8,
    "features": tf.string,
    "attention": tf.string,
}
DEFAULT_SIGNATURES = tuple(name for name in SIGNATURES if name != "attention")  # some models have no attention


def make_signatures(model, *, signatures, top, tokens, on_error, max_pixels, jit_compile):
    """Build the signatures of `model` with a dynamic batch size, see `keras_vit.export`.

    Args:
        model: a classifier of this package.
        signatures: keys of `SIGNATURES`.
        top: number of classes that `serving_default` returns.
        tokens: whether `features` also returns the tokens.
        on_error, max_pixels: see `read_rows`.
        jit_compile: whether XLA compiles the model.

    Returns:
        Dict from signature name to a concrete function of TensorFlow.
    """

    @functools.cache  # one graph for all signatures with the same outputs
    def run(*names):
        """Return a function from model input to a dict of float32 outputs."""
        outputs = output_model(model, names)

        @tf.function(jit_compile=jit_compile, autograph=False)
        def call(images):
            with contextlib.nullcontext() if jit_compile else written_for(ONEDNN):
                answers = outputs(images, training=False)
            return {name: tf.cast(value, tf.float32) for name, value in answers.items()}

        return call

    file_spec = tf.TensorSpec([None], tf.string, name="image_bytes")

    @tf.function(input_signature=[file_spec], autograph=False)
    def read(image_bytes):
        return read_rows(image_bytes, model.preprocessing, max_pixels, on_error)

    def of_bytes(answer):
        """Return a signature of `image_bytes`; rows of unreadable images are zero or empty."""

        @tf.function(input_signature=[file_spec], autograph=False)
        def signature(image_bytes):
            images, errors = read(image_bytes)
            outputs = answer(images)
            if on_error == "raise":
                return outputs
            return {**{name: _blank(value, errors) for name, value in outputs.items()}, "error": errors}

        return signature

    def of_pixels(answer, dtype):
        shape = [None, None, None, model.preprocessing.channels]

        @tf.function(input_signature=[tf.TensorSpec(shape, dtype, name="images")], autograph=False)
        def signature(images):
            return answer(_preprocessed(model.preprocessing, images))

        return signature

    outputs = {"features": ("features", "tokens") if tokens else ("features",), "attention": ("attention",)}
    functions = {}
    for name in signatures:
        answer = run(*outputs.get(name, (class_scores(model),)))
        if name == "serving_default":
            answer = _named(model, top, answer)
        takes = SIGNATURES[name]
        function = of_bytes(answer) if takes == tf.string else of_pixels(answer, takes)
        functions[name] = function.get_concrete_function()
    return functions


def class_labels(model):
    """Return the names of the model's classes; `class_17` and so on for a model without labels."""
    return model.labels or tuple(f"class_{index}" for index in range(model.config.classes))


def _named(model, top, run):
    """Return a function from model input to the best classes and their scores."""
    labels = class_labels(model)
    answers = min(top, len(labels))

    def answer(images):
        ((kind, outputs),) = run(images).items()
        scores = outputs if kind == "scores" else tf.nn.softmax(outputs)
        scores, indices = tf.math.top_k(scores, k=answers)  # (batch, k)
        return {"classes": tf.gather(tf.constant(labels), indices), "scores": scores}

    return answer


def _blank(values, errors):
    """Return `values` (batch, ...), zero or empty in the rows that have an error."""
    is_read = tf.reshape(errors == "", [-1] + [1] * (values.shape.rank - 1))
    return tf.where(is_read, values, tf.zeros((), values.dtype))


def _preprocessed(protocol, images):
    return tf.map_fn(
        lambda image: ops.apply(protocol, image),
        images,
        parallel_iterations=1,  # images may be large
        fn_output_signature=tf.TensorSpec([*protocol.image_size, protocol.channels], tf.float32),
    )
