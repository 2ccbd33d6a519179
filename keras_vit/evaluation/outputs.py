"""Run a model on images: `predict`, and the batches and checks that all evaluations share."""

import warnings
from typing import Any, overload

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.compat.inference import inference
from keras_vit.data import images as readers
from keras_vit.data.preprocessing import check
from keras_vit.models import TaskModel
from keras_vit.models.base import ImageModel
from keras_vit.models.encoders import described, find_encoders, labels_of, preprocessing_of, score_activations
from keras_vit.models.training_warnings import look_at
from keras_vit.progress import progress
from keras_vit.tasks.answers import predict_task

_BATCH_SIZE = 32


@overload
def predict(
    model: ImageModel,
    images: readers.Images,
    top: int | None = None,
    value_range: tuple[float, float] | None = None,
    verbose: bool = False,
) -> list[list[tuple[str, float]]]: ...


@overload
def predict(
    model: TaskModel,
    images: readers.Images,
    top: int | None = None,
    value_range: tuple[float, float] | None = None,
    verbose: bool = False,
    **options: Any,
) -> list[Any]: ...


def predict(
    model: ImageModel | TaskModel,
    images: readers.Images,
    top: int | None = None,
    value_range: tuple[float, float] | None = None,
    verbose: bool = False,
    **options: Any,
) -> list[Any]:
    """Classify images, or return what a task model answers for them.

    The answers of a `TaskModel` are depth, segments, boxes, keypoints or masks.

    Args:
        model: a classifier of keras_vit, or layers after one, such as a new head; its `preprocessing` and `labels` are
            used, see `keras_vit.Model`. Or a `TaskModel`.
        images: a path, bytes, an open file, a PIL image, an array, or a list of them, as in `keras_vit.preprocess`.
        top: number of classes per image, best first; all classes if the model has fewer; None is 5. For detectors,
            number of boxes; None is all.
        value_range: darkest and brightest value of the arrays in `images`, as in `keras_vit.preprocess`.
        verbose: whether to show a progress bar, for classifiers.
        **options: of task models. Coordinates are x and y in pixels of the upright image. `boxes`, `points` and
            `labels` are of one image; if `images` is a list, they are lists with one value per image.
            `EoMT`: `segments`: `panoptic` (default), `instances` or `semantic`; `stuff`: indices of classes whose
            segments become one; `threshold` and `overlap`, see `keras_vit.tasks.panoptic`, both 0.8.
            `YOLOS`: `threshold`, 0.5. `OWL`: `text`, a string or a list, and `threshold`, 0.1; or `examples`, a list of
            uint8 arrays that each show an object, `threshold`, 0, and `overlap`, 0.3.
            `ViTPose`: `boxes` (persons, 4), left, top, right and bottom edges, or a `Boxes`; the default is the whole
            image; `blur`, see `keras_vit.tasks.heatmap_peaks`.
            `SAM`: `points` (points, 2) of one object or (objects, points, 2), `labels` of their shape, 1 on the object
            (default) and 0 on the background; `boxes` (objects, 4) or a `Boxes`; `multimask`: True (default) takes the
            best of three masks of each object, False the one for prompts that are not ambiguous.
            `CLIPSeg`: `text`, a string or a list, and `threshold`, 0.5. `DPT`, `DPTSegmentation` and
            `LinearSegmentation` have none.

    Returns:
        A list with one entry per image; for a single image, the list has one entry. Of a classifier, a list of
        `(label, score)` pairs, best first. Scores are softmax probabilities (of a sigmoid, if the model has one class),
        or the outputs of the head if `classifier_activation` is set. Class 17 of a model without labels is named
        `"class_17"`. Of a task model, a `DepthMap`, `Segments`, `LabelMap`, `Boxes`, `Keypoints` or `Masks`.

    Raises:
        ValueError, FileNotFoundError, TypeError: as in `keras_vit.preprocess`, and on a model without a head or
            without pooling, or an option that the model does not have or that is out of range.

    Warns:
        UserWarning: if the kernel of the head is all zeros, so that all classes have the same score.
    """
    checks.check_flag("verbose", verbose)
    if isinstance(model, TaskModel):
        listed = readers.as_images(images, value_range)
        options |= {} if top is None else {"top": top}
        return predict_task(model, listed, isinstance(images, (list, tuple)) or len(listed) > 1, options)
    if options:
        raise TypeError(f"{next(iter(options))} is an option of task models; got a {type(model).__name__}")
    check_classifier(model)
    preprocessing = check_preprocessing(model, None)
    listed = readers.as_images(images, value_range)
    starts = range(0, len(listed), _BATCH_SIZE)
    batches = (readers.stack(listed[start : start + _BATCH_SIZE], preprocessing) for start in starts)
    forward = inference(model) if len(starts) > 1 else model.predict_on_batch
    return _best(model, batches, len(starts), 5 if top is None else top, forward, verbose=verbose)


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
    check_classifier(model)
    inputs = np.asarray(inputs, np.float32)
    return _best(model, [inputs], 1, top, model.predict_on_batch, method="predict_prepared")


def _best(model, batches, steps, top, forward, method=None, verbose=False):
    checks.check_integer("top", top)
    if has_zero_head(model):
        warnings.warn(
            f"the head of {model.name} has a kernel of zeros and returns the same scores for every image: "
            "the ImageNet-21k checkpoints of 2020 have such heads, and a new head is zero until it is trained",
            UserWarning,
            stacklevel=3,
        )
    names, answers = logit_names(model), []
    labelled = ((inputs, None) for inputs in batches)
    for scores, _ in run_batches(forward, model, method, "scores", labelled, steps, verbose):
        for row in probabilities(model, scores):
            answers.append([(names[n], float(row[n])) for n in np.argsort(-row, kind="stable")[:top]])
    return answers


def run_batches(forward, model, method, what, batches, steps=None, verbose=False):
    """Return an iterator over (outputs, labels) of each batch; outputs are float32 (batch, ...).

    Args:
        forward: result of `inference`, for `model` or for a graph of its layers.
        model: the keras model that messages name.
        method: name of the method for the warning about the value range of the first batch; None skips this check.
        what: name of the outputs in messages, such as `"scores"`.
        batches: iterable of (inputs, labels).
        steps: number of batches, or None.
        verbose: whether to show a progress bar.

    Raises:
        ValueError: if outputs are not finite.
    """
    return progress(_outputs(forward, model, method, what, batches), steps, "batch", verbose)


def _outputs(forward, model, method, what, batches):
    for step, (inputs, labels) in enumerate(batches, start=1):
        if method and step == 1:
            look_at(model, method, inputs, {}, None)
        outputs = forward(inputs).astype(np.float32)
        if not np.isfinite(outputs).all():
            raise ValueError(
                f"model must return finite {what}; {model.name} returns NaN or infinity for some images: its weights "
                "are not finite, or float16 overflows"
            )
        yield outputs, labels


def probabilities(model, outputs):
    """Return the scores of the outputs (batch, classes), as `score_activations` says."""
    own, activation = score_activations(model)
    if own is not None:
        return outputs
    if activation == "sigmoid":
        return 0.5 + 0.5 * np.tanh(0.5 * outputs)  # 1 / (1 + exp(-x)) without overflow
    exponentials = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def logit_names(model):
    """Return the labels of a classifier; without labels `"class_0"` and so on.

    Return the labels of a task model, or `()`; of an encoder, `()`.
    """
    if isinstance(model, TaskModel):
        return model.labels or ()
    if isinstance(model, ImageModel) and not model.config.include_top:
        return ()
    return labels_of(model) or tuple(f"class_{n}" for n in range(model.output_shape[-1]))


def has_zero_head(model):
    """Whether the kernels of all heads are zeros, so that all classes have the same score."""
    heads = [layer for layer in model.layers if layer.name in ("head", "head_dist")]
    return bool(heads) and not any(keras.ops.any(keras.ops.not_equal(head.kernel, 0)) for head in heads)


def check_classifier(model):
    """Raise a `ValueError` unless `model` has known images and one row of class scores per image."""
    shape = getattr(model, "output_shape", None)  # a list, a dict or a tuple of shapes of several outputs
    is_row = isinstance(shape, tuple) and len(shape) == 2 and not isinstance(shape[0], tuple)
    if not isinstance(model, ImageModel):
        images = preprocessing_of(model) if isinstance(model, keras.Model) else None
        if not is_row or images is None or images.patch_size is None and len(model.inputs) > 1:
            found = type(model).__name__ if images or find_encoders(model) else described(model)
            raise ValueError(
                "model must be a classifier of keras_vit, such as keras_vit.ViT_B16(...), or a functional model with "
                f"one score per class and image after one; got {found} that returns {shape} (if its images are "
                "prepared as those of the model inside, set model.preprocessing = encoder.preprocessing; of several "
                "outputs, take one: keras_vit.Model(model.input, model.outputs[0]))"
            )
        return
    config = model.config
    if not config.include_top or not is_row:
        raise ValueError(
            f"model must have a head with one score per class and image, shape (None, {config.classes}), as with "
            f"include_top=True and pooling 'token', 'gap' or 'map'; {config.name} was built with "
            f"include_top={config.include_top} and returns {tuple(model.output_shape)}"
        )


def check_preprocessing(model, preprocessing):
    """Return `preprocessing`, or the model's own if it is None, after checking that its images fit the model.

    Raises:
        TypeError: if it is not a `Preprocessing`.
        ValueError: if there is none, if its images do not fit, or if both it and the model standardise the images, or
            neither does.
    """
    own = preprocessing_of(model)
    preprocessing = own if preprocessing is None else preprocessing
    if preprocessing is None:
        raise ValueError(f"preprocessing must be given, as {model.name} has none (set model.preprocessing)")
    check(preprocessing)
    patch_sizes = preprocessing.patch_size, own and own.patch_size
    if patch_sizes[0] != patch_sizes[1]:
        raise ValueError(
            f"preprocessing must have patch_size={patch_sizes[1]} for {model.name}; got {patch_sizes[0]} (None makes "
            "images of one size, others patches of native aspect ratios; use model.preprocessing)"
        )
    if preprocessing.patch_size is not None and (own.channels, own.in_model) == (preprocessing.channels, False):
        return preprocessing
    shape, taken = (*preprocessing.image_size, preprocessing.channels), tuple(model.input_shape[1:])
    if len(taken) != 3 or any(side not in (None, size) for side, size in zip(taken, shape, strict=True)):
        raise ValueError(
            f"preprocessing must give images of {taken}; got {shape} of {preprocessing} (use preprocessing.at)"
        )
    is_applied = own is not None and own.in_model
    is_other = is_applied and (own.mean, own.std) != (preprocessing.mean, preprocessing.std)
    if own is not None and own.in_model != preprocessing.in_model or is_other:
        values = f" and must have the mean and std that {model.name} applies itself, {own.mean} and {own.std}"
        raise ValueError(
            f"preprocessing must have in_model={own.in_model} for {model.name}, built with include_preprocessing="
            f"{own.in_model}{values if is_applied else ''}; got {preprocessing} (use or set model.preprocessing)"
        )
    return preprocessing
