"""The signatures of an exported task model: from images to answers in the graph, and from arrays to its outputs."""

import collections
import functools

import keras
import numpy as np
import tensorflow as tf

from keras_vit.compat.inference import for_inference
from keras_vit.data import preprocessing as preparation
from keras_vit.layers.position_grid import resize_weights
from keras_vit.layers.resizing import neighbours, resize_maps
from keras_vit.models import DPT, OWL, YOLOS, DPTSegmentation, EoMT, LinearSegmentation, ViTPose
from keras_vit.tasks import placements, prepare
from keras_vit.tasks.answers import KINDS

_NOT_IN_GRAPH = ("windows", "square", "box")  # rules of `sizing`
_NAMES = {DPT: "values", ViTPose: "heatmaps"}  # of single outputs; others are logits
TASK_SIGNATURES = {
    "serving_default": "Files of images of one size; the answer in pixels of the images.",
    "arrays": "What keras_vit.tasks.prepare makes of an image, and prompts; the outputs of the model. The section\n"
    "  Task models of docs/guides/serving.md lists the functions of keras_vit.tasks that make answers of them.",
}


def array_specs(model):
    """Return {name: `tf.TensorSpec`} of the inputs of a task model, without the boxes and masks of SAM."""
    inputs = model.input if isinstance(model.input, dict) else {"images": model.input}
    specs = {name: tf.TensorSpec(x.shape, x.dtype, name=name) for name, x in inputs.items()}
    if isinstance(model, OWL):
        specs["queries"] = tf.TensorSpec([None, model.text_config.projection_dim], tf.float32, name="queries")
    return {name: spec for name, spec in specs.items() if name not in ("boxes", "masks")}


def call_arrays(model, arrays):
    """Return the outputs of a task model on any backend as a dict; `arrays` are the inputs of `array_specs`."""
    if isinstance(model, OWL):
        return model.detect(**arrays)
    is_dict = isinstance(model.input, dict)
    outputs = model({**dict.fromkeys(model.input), **arrays} if is_dict else arrays["images"], training=False)
    return outputs if isinstance(outputs, dict) else {_NAMES.get(type(model), "logits"): outputs}


def answers_files(model):
    """Return whether the graph computes the answers of a task model for files."""
    rule, has_offset = model.preprocessing.sizing, isinstance(model, (DPT, DPTSegmentation))
    return type(model) in _ANSWERS and rule not in _NOT_IN_GRAPH and (rule != "center_padding" or has_offset)


def make_task_signatures(model, max_pixels):
    """Build the signatures of a task model, see `keras_vit.export`.

    Args:
        model: a task model.
        max_pixels: maximum height times width in the header of an image.

    Returns:
        Dict from signature name to a concrete function of TensorFlow.
    """
    protocol, specs = model.preprocessing, array_specs(model)

    @tf.function(input_signature=[*specs.values()], autograph=False)
    def of_arrays(*arrays):
        with for_inference():
            outputs = call_arrays(model, dict(zip(specs, arrays, strict=True)))
        return {name: tf.cast(x, tf.float32) for name, x in outputs.items()}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")], autograph=False)
    def of_files(image_bytes):
        decoded, row = (
            tf.TensorSpec((None, None, protocol.channels), tf.uint8),
            tf.TensorSpec(specs["images"].shape[1:]),
        )
        decode = functools.partial(preparation.decode, channels=protocol.channels, max_pixels=max_pixels)
        images = tf.map_fn(lambda file: decode(file, has_python=False), image_bytes, fn_output_signature=decoded)
        inputs = tf.map_fn(lambda image: preparation.apply(protocol, image), images, fn_output_signature=row)
        sizes = tf.shape(images)[1:3], tf.shape(inputs)[1:3]
        return _ANSWERS[type(model)](model, of_arrays(inputs), *sizes)

    functions = {"serving_default": of_files} if answers_files(model) else {}
    return {name: one.get_concrete_function() for name, one in (functions | {"arrays": of_arrays}).items()}


def _depth(model, outputs, size, input_size):
    sides = tf.cast(tf.stack([tf.shape(outputs["values"])[1:], size], 1), tf.float32)  # rows and columns; old and new
    pairs = [tf.unstack(pair) for pair in tf.unstack(sides)]
    matrices = (resize_weights("bicubic", tf.range(new), old, new) for old, new in pairs)
    return {"values": tf.einsum("yr,xc,brc->byx", *matrices, outputs["values"])}


def _labels(model, outputs, size, input_size):
    scores = outputs["logits"]

    def row(places):  # one at a time, as the scores of all pixels would need much memory
        low, high, share = places
        line = scores[:, low] * (1 - share) + scores[:, high] * share
        return tf.argmax(resize_maps(line[:, None], (1, size[1]), False)[:, 0], -1, tf.int32)

    rows = tf.map_fn(row, neighbours(tf.shape(scores)[1], size[0], False), fn_output_signature=tf.int32)
    return {"labels": tf.transpose(rows, (1, 0, 2))}


def _segments(model, outputs, size, input_size):
    height, width = tf.unstack(preparation.resized_sides(model.preprocessing, size))
    masks = tf.sigmoid(resize_maps(outputs["mask_logits"], tuple(tf.unstack(input_size)), False))[:, :height, :width]
    scores = tf.einsum("bhwq,bqk->bhwk", masks, tf.nn.softmax(outputs["class_logits"])[..., :-1])
    return _labels(model, {"logits": scores}, size, input_size)


def _boxes(model, outputs, size, input_size):
    scores, (middle, sides) = tf.nn.softmax(outputs["logits"])[..., :-1], tf.split(outputs["boxes"], 2, -1)
    resized = preparation.resized_sides(model.preprocessing, size)
    unit = tf.cast(size * input_size, tf.float32) / tf.cast(resized, tf.float32)
    edges = tf.concat([middle - sides / 2, middle + sides / 2], -1) * tf.tile(unit[::-1], [2])
    return {"boxes": edges, "scores": tf.reduce_max(scores, -1), "labels": tf.argmax(scores, -1, tf.int32)}


# functions of the model, its outputs, and (height, width) of image and input; they return attributes of the answer
_ANSWERS = {DPT: _depth, DPTSegmentation: _labels, EoMT: _segments, LinearSegmentation: _labels, YOLOS: _boxes}
_OPTIONS = {EoMT: {"segments": "semantic"}, YOLOS: {"threshold": 0.0}}  # of `predict`, which returns the same answer


def example_arrays(model, image):
    """Return arrays for each input of `array_specs`, by name; `image` is uint8 (height, width, channels)."""
    images, rng = prepare(image, model.preprocessing)[0][:1], np.random.default_rng(0)
    middle = np.full((1, 1, 1, 2), min(images.shape[1:3]) / 2, "float32")
    known = {"images": images, "points": middle, "labels": np.ones((1, 1, 1), "int32")}
    shapes = {name: [side or 1 for side in spec.shape] for name, spec in array_specs(model).items()}
    return {name: known.get(name, rng.normal(size=shape).astype("float32")) for name, shape in shapes.items()}


def expected_outputs(model, pixels, format):
    """Return what an export must return for images, uint8 (height, width, channels), as rows of values by name.

    Other formats than a SavedModel only have the outputs of the signature `arrays`.
    """
    found = collections.defaultdict(list)
    for image in pixels:
        for name, x in call_arrays(model, example_arrays(model, image)).items():
            found[f"arrays/{name}"].append(np.ravel(_as_float32(x)))
        if format == "saved_model" and answers_files(model):
            with tf.device("CPU"):
                inputs = np.asarray(preparation.apply(model.preprocessing, image))[None]
            outputs = keras.tree.map_structure(_as_float32, model.predict_on_batch(inputs))
            places, size = placements(model.preprocessing, image.shape[:2]), image.shape[:2]
            answer = KINDS[type(model)][1](model, outputs, places, size, **_OPTIONS.get(type(model), {}))
            for name in [name for name, x in vars(answer).items() if isinstance(x, np.ndarray)]:
                found[f"serving_default/{name}"].append(np.ravel(getattr(answer, name)))
    return {name: np.concatenate(values) for name, values in found.items()}


def _as_float32(x):
    return np.asarray(keras.ops.convert_to_numpy(x), "float32")
