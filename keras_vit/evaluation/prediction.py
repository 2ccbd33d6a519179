"""`predict`: classify images."""

import warnings

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.data import images as readers
from keras_vit.evaluation import outputs
from keras_vit.models.base import ImageModel
from keras_vit.models.training_warnings import looked_at

_BATCH_SIZE = 32


def predict(
    model: ImageModel, images: readers.Images, top: int = 5, value_range: tuple[float, float] | None = None
) -> list[list[tuple[str, float]]]:
    """Classify images.

    Args:
        model: a classifier of keras_vit; its `preprocessing` and `labels` are used.
        images: a path, bytes, a PIL image, an array, or a list of them, as in `keras_vit.preprocess`.
        top: number of classes per image, best first; all classes if the model has fewer.
        value_range: darkest and brightest value of the arrays in `images`, as in `keras_vit.preprocess`.

    Returns:
        A list with one entry per image: a list of `(label, score)` pairs, best first. Scores are softmax
        probabilities, or the outputs of the head if `classifier_activation` is set. Class 17 of a model without
        labels is named `"class_17"`. A single image also returns a list with one entry.

    Raises:
        ValueError, FileNotFoundError, TypeError: as in `keras_vit.preprocess`, and on a model without a head or
            without pooling.

    Warns:
        UserWarning: if the kernel of the head is all zeros, so that all classes have the same score.
    """
    outputs.check_classifier(model)
    outputs.check_preprocessing(model, model.preprocessing)
    checks.check_integer("top", top)
    listed = readers.as_images(images, value_range)
    _warn_of_zero_head(model)
    score = outputs.scorer(model, compiled=len(listed) > _BATCH_SIZE)
    answers = []
    for start in range(0, len(listed), _BATCH_SIZE):
        inputs = readers.stack(listed[start : start + _BATCH_SIZE], model.preprocessing)
        rows = outputs.probabilities(model, score(inputs))
        answers += [_best(row, model.labels, top) for row in rows]
    return answers


def predict_prepared(model: ImageModel, inputs: npt.ArrayLike, top: int = 5) -> list[list[tuple[str, float]]]:
    """Classify images that `keras_vit.preprocess` has already prepared, in one batch.

    Args:
        model: a classifier of keras_vit; its `labels` are used.
        inputs: float32 array (images, height, width, channels), as returned by `keras_vit.preprocess`.
        top: as in `predict`.

    Returns:
        The same as `predict`.

    Raises:
        ValueError: on a model without a head or without pooling.

    Warns:
        UserWarning: as in `predict`.
    """
    outputs.check_classifier(model)
    checks.check_integer("top", top)
    _warn_of_zero_head(model)
    inputs = looked_at(model, "predict_prepared", np.asarray(inputs))
    rows = outputs.probabilities(model, outputs.scorer(model, compiled=False)(inputs))
    return [_best(row, model.labels, top) for row in rows]


def _best(row, labels, top):
    order = np.argsort(-row, kind="stable")[:top]
    return [(labels[n] if labels is not None else f"class_{n}", float(row[n])) for n in order]


def _warn_of_zero_head(model):
    if outputs.has_zero_head(model):
        warnings.warn(
            f"the head of {model.config.name} has a kernel of zeros and returns the same scores for every image: "
            "the ImageNet-21k checkpoints of 2020 have such heads, and a new head is zero until it is trained",
            UserWarning,
            stacklevel=3,
        )
