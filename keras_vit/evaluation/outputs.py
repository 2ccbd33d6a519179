"""Outputs of a classifier as NumPy arrays, with the checks that `predict` and `evaluate` share."""

import keras
import numpy as np

from keras_vit.compat.inference import inference
from keras_vit.data.preprocessing import check
from keras_vit.models.base import described


def check_classifier(model):
    """Raise a `ValueError` unless `model` is a model of this package with one row of class scores per image."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "classes"):
        raise ValueError(
            "model must be a classifier of keras_vit, such as keras_vit.ViT_B16(...); "
            f"got {described(model)}, without a config"
        )
    if not config.include_top:
        raise ValueError(
            f"model must have a classification head; {config.name} was built with include_top=False, "
            "so it returns features"
        )
    shape = tuple(model.output_shape)
    if len(shape) != 2:
        raise ValueError(
            f"model must return one score per class and image, shape (None, {config.classes}); "
            f"{config.name} returns {shape}: pooling 'token', 'gap' and 'map' return one vector per image"
        )


def has_zero_head(model):
    """Whether the kernels of all heads are zeros, so that all classes have the same score."""
    heads = [layer for layer in model.layers if layer.name in ("head", "head_dist")]
    return not any(keras.ops.any(keras.ops.not_equal(head.kernel, 0)) for head in heads)


def check_preprocessing(model, preprocessing):
    """Raise a `TypeError` or `ValueError` unless the images of `preprocessing` fit `model`."""
    check(preprocessing)
    if model.config.channels not in (1, 3):
        raise ValueError(
            f"model must have images with 1 or 3 channels as input; {model.config.name} has {model.config.channels}: "
            "prepare its inputs yourself, float32 as in its training, for model.predict"
        )
    given = (*preprocessing.image_size, preprocessing.channels)
    taken = tuple(model.input_shape[1:])
    if given != taken:
        raise ValueError(
            f"preprocessing must produce images of shape {taken} for this model; "
            f"got {given} from {preprocessing}: use preprocessing.at(image_size)"
        )
    check_who_maps(model, preprocessing)


def check_who_maps(model, preprocessing):
    """Raise a `ValueError` if both a model and `preprocessing` standardise the images, or neither does."""
    own = getattr(model, "preprocessing", None)
    if own is not None and own.in_model != preprocessing.in_model:
        raise ValueError(
            f"preprocessing must have in_model={own.in_model} for {model.name}, built with "
            f"include_preprocessing={own.in_model}; got {preprocessing} (replace(in_model={own.in_model}) changes it)"
        )
    if own is not None and own.in_model and (own.mean, own.std) != (preprocessing.mean, preprocessing.std):
        raise ValueError(
            f"preprocessing must have the mean and std that {model.name} applies itself, {own.mean} and {own.std}; got "
            f"{preprocessing} (set model.preprocessing)"
        )


def scorer(model, compiled):
    """Return a function from a batch of inputs to the outputs of the head, float32 (batch, classes).

    `compiled` is as in `compat.inference`. The function raises a `ValueError` if outputs are not finite.
    """
    run = inference(model, compiled)

    def score(inputs):
        outputs = run(inputs).astype(np.float32)
        if not np.isfinite(outputs).all():
            raise ValueError(
                f"model must return finite scores; {model.config.name} returns NaN or infinity for some "
                "images: its weights are not finite, or float16 overflows"
            )
        return outputs

    return score


def probabilities(model, outputs):
    """Return the softmax of the outputs (batch, classes); unchanged if the head has an activation."""
    if model.config.classifier_activation is not None:
        return outputs
    exponentials = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
