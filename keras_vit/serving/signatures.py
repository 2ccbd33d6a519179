"""The two questions an exported model answers, as TensorFlow functions: encoded pictures, pixel tensors."""

import tensorflow as tf

from keras_vit.data import preprocessing as pictures


def make_signatures(model, top):
    """Builds the signatures of `model`; the batch size is open in both.

    - `serving_default`: `image_bytes`, string (batch,), encoded picture files -> `classes`, string (batch,
      k), and `scores`, float32 (batch, k), the k = min(top, classes) likeliest first. Scores are the softmax
      of the logits, or the model's own output if it ends in an activation.
    - `images`: `images`, float32 (batch, height, width, channels) of any size, values in [0, 255] ->
      `logits`, float32 (batch, classes), or `scores` if the model ends in an activation.

    Both preprocess in the graph as `model.preprocessing` says, by the code that training and evaluation use.

    Args:
        model: a classifier of this package.
        top: classes in the answer of `serving_default`.

    Returns:
        Dict from signature name to `tf.function`.
    """
    channels = model.preprocessing.channels
    activation = model.config.classifier_activation
    labels = class_labels(model)
    answers = min(top, len(labels))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serving_default(image_bytes):
        files = _preprocessed(model, image_bytes, lambda contents: pictures.decode(contents, channels))
        outputs = _outputs(model, files)
        scores, indices = tf.math.top_k(outputs if activation else tf.nn.softmax(outputs), k=answers)  # (batch, k)
        return {"classes": tf.gather(tf.constant(labels), indices), "scores": scores}

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, channels], tf.float32, name="images")])
    def images(images):
        return {"scores" if activation else "logits": _outputs(model, _preprocessed(model, images))}

    return {"serving_default": serving_default, "images": images}


def class_labels(model):
    """Returns the names of the model's classes; `class_17` and so on for a model without labels."""
    return model.labels or tuple(f"class_{index}" for index in range(model.config.classes))


def _preprocessed(model, inputs, decode=lambda image: image):
    # One picture after the other: sizes differ, and decoding one of 63 megapixels takes 225 MB.
    height, width = model.preprocessing.image_size
    return tf.map_fn(
        lambda item: pictures.apply(model.preprocessing, decode(item)),
        inputs,
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec([height, width, model.preprocessing.channels], tf.float32),
    )


def _outputs(model, images):
    return tf.cast(model(images, training=False), tf.float32)  # (batch, classes)
