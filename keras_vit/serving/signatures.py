"""The signatures of an exported model as TensorFlow functions of encoded images or pixels."""

import functools

import keras
import tensorflow as tf

from keras_vit.analysis import rollout_model
from keras_vit.compat.graph import graph_calls
from keras_vit.compat.inference import for_inference
from keras_vit.data import preprocessing as preparation
from keras_vit.evaluation.outputs import logit_names
from keras_vit.layers.forms import check_in_call
from keras_vit.models.base import ImageModel
from keras_vit.models.encoders import is_encoder, output_calls, score_activations
from keras_vit.serving.rows import read_rows

# signature -> dtype of its input (strings are encoded files, numbers are pixels), and its description. Without a head,
# `serving_default` returns what `features` returns.
SIGNATURES = {
    "serving_default": (tf.string, "Classes and scores, best first; assets/labels.txt lists the class of each logit."),
    "images": (tf.float32, "Pixels of any size, values 0 to 255."),
    "images_uint8": (tf.uint8, "The same for uint8 pixels."),
    "native": (tf.float32, "Pixels that are not resized, values 0 to 255."),
    "features": (tf.string, "The features, which a classification head takes."),
    "attention": (tf.string, "Attention rollout: the contribution of each patch, by rows and columns."),
}
DEFAULT_SIGNATURES = tuple(name for name in SIGNATURES if name not in ("native", "attention"))  # not of all models


def make_signatures(model, *, signatures, top, tokens, on_error, max_pixels, native_pixels, jit_compile):
    """Build the signatures of `model` with a dynamic batch size, see `keras_vit.export`.

    Args:
        model: a classifier or encoder of this package.
        signatures: keys of `SIGNATURES`.
        top: number of classes that `serving_default` returns.
        tokens: whether `features` also returns the tokens.
        on_error, max_pixels: see `read_rows`.
        native_pixels: limit of height times width for `native`.
        jit_compile: whether XLA compiles the model.

    Returns:
        Dict from signature name to a concrete function of TensorFlow.
    """
    file_spec = tf.TensorSpec([None], tf.string, name="image_bytes")

    @functools.cache  # one graph for all signatures with the same outputs
    def run(*names):
        """Return a function from model input to a dict of float32 outputs."""
        outputs = output_model(model, names)

        @tf.function(jit_compile=jit_compile, autograph=False)
        def call(images):
            with for_inference(jit_compile):
                answers = outputs(images, training=False)
            return {name: tf.cast(value, tf.float32) for name, value in answers.items()}

        return call

    @tf.function(input_signature=[file_spec], autograph=False)
    def read(image_bytes):
        return read_rows(image_bytes, model.preprocessing, max_pixels, on_error)

    def make(name):
        names = {"features": ("features", "tokens") if tokens else ("features",), "attention": ("attention",)}
        answer = run(*names.get(name, (class_scores(model),)))
        dtype, _ = SIGNATURES[name]
        pixels_spec = tf.TensorSpec([None, None, None, model.preprocessing.channels], dtype, name="images")

        @tf.function(input_signature=[file_spec], autograph=False)
        def of_files(image_bytes):
            """Return the outputs; rows of unreadable images are zero or empty."""
            rows, errors = read(image_bytes)
            outputs = answer(preparation.as_inputs(model.preprocessing, rows))
            if name == "serving_default" and not is_encoder(model):
                outputs = _best_classes(model, top, outputs)
            if on_error == "raise":
                return outputs
            return {**{key: _blank(value, errors) for key, value in outputs.items()}, "error": errors}

        @tf.function(input_signature=[pixels_spec], autograph=False)
        def of_pixels(images):
            if name != "native":
                return answer(preparation.as_inputs(model.preprocessing, _preprocessed(model.preprocessing, images)))
            sides, config = tf.shape(images, tf.int64)[1:3], model.config
            limits = {f"images must have at most {native_pixels} pixels each": tf.reduce_prod(sides) <= native_pixels}
            if not config.embedding.pad:  # the model checks it too, unless XLA compiles it
                step, is_divisor = config.patch_size, config.embedding.whole_patches
                message = f"patch_size {step} must {'divide' if is_divisor else 'be at most'} image_size"
                limits[message] = sides % step == 0 if is_divisor else sides >= step
            for message, is_right in limits.items():
                images = check_in_call(images, message, lambda is_right=is_right: is_right, lambda: sides)
            return answer(preparation.standardise(model.preprocessing, images))

        return (of_files if dtype == tf.string else of_pixels).get_concrete_function()

    return {name: make(name) for name in signatures}


def output_model(model, names):
    """Build a keras model from the input of `model` to a dict of outputs; it shares the weights of `model`.

    Args:
        model: a classifier or encoder of this package.
        names: names of the outputs: `logits` or `scores`, see `class_scores`; `features`, the input of the head (for a
            distilled model the mean of the inputs of its two heads; for a model with other layers around one of this
            package, the input of the last layer); `tokens`, the input of the pooling (for a ResNet its last map);
            `attention`, the rollout.
    """
    taken = {call.operation.name: call.input_tensors[0] for call in graph_calls(model) if call.input_tensors}
    read = [taken[name] for name in ("head", "head_dist") if name in taken and isinstance(model, ImageModel)]
    read = [model.output] if is_encoder(model) else read or output_calls(model)[0].input_tensors
    make = {
        "features": lambda: sum(read[1:], read[0]) / len(read),
        "tokens": lambda: taken["pooling"],
        "attention": lambda: rollout_model(model).output,
    }
    outputs = {name: make[name]() if name in make else model.output for name in names}
    # Not the model's name, which may contain characters that TensorFlow scopes do not allow.
    return keras.Model(model.input, outputs, name="outputs")


def class_scores(model):
    """Return the name of the model's output: `features` without a head, `scores` after an activation, or `logits`."""
    return "features" if is_encoder(model) else "scores" if score_activations(model)[0] else "logits"


def _best_classes(model, top, outputs):
    """Return the names of the best classes and their scores."""
    ((kind, scores),) = outputs.items()
    labels = logit_names(model)
    scores = scores if kind == "scores" else getattr(tf.nn, score_activations(model)[1])(scores)
    scores, indices = tf.math.top_k(scores, k=min(top, len(labels)))  # (batch, k)
    return {"classes": tf.gather(tf.constant(labels), indices), "scores": scores}


def _blank(values, errors):
    """Return `values` (batch, ...), zero or empty in the rows that have an error."""
    is_read = tf.reshape(errors == "", [-1] + [1] * (values.shape.rank - 1))
    return tf.where(is_read, values, tf.zeros((), values.dtype))


def _preprocessed(protocol, images):
    return tf.map_fn(
        lambda image: preparation.apply(protocol, image),
        images,
        parallel_iterations=1,  # images may be large
        fn_output_signature=tf.TensorSpec(preparation.row_shape(protocol), tf.float32),
    )
