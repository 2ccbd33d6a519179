"""`evaluate`: the share of pictures whose class is among a model's best guesses."""

import dataclasses
import os

import keras
import numpy as np

from keras_vit import checks
from keras_vit.data import from_folder
from keras_vit.data.pipeline import eval_batches
from keras_vit.data.sources import ImageSource
from keras_vit.evaluation import outputs
from keras_vit.evaluation.class_matching import match_classes


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """What `evaluate` found.

    Attributes:
        count: number of pictures.
        correct: {k: number of pictures whose class is among the k best}.
        matching: how the data's classes were matched to the model's logits, in words.
    """

    count: int
    correct: dict
    matching: str

    @property
    def top(self):
        """{k: share, in [0, 1], of pictures whose class is among the k best}."""
        return {k: right / self.count for k, right in self.correct.items()}

    def __str__(self):
        parts = [
            f"top-{k} accuracy {100 * share:.2f} % ({self.correct[k]} of {self.count})" for k, share in self.top.items()
        ]
        return f"{', '.join(parts)}; classes matched {self.matching}"


def evaluate(model, data, batch_size=32, preprocessing=None, top=(1, 5), class_names=None, verbose=False):
    """Counts how often a model is right.

    Args:
        model: a classifier of keras_vit.
        data: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of (inputs as the
            model takes them, integer labels).
        batch_size: pictures per batch; a dataset has its own.
        preprocessing: what to use instead of `model.preprocessing` on a folder or source.
        top: the k of the top-k accuracies, one integer or several. A k beyond the number of classes counts
            every picture.
        class_names: names of the data's classes, in the order of its labels, instead of the folder's or the
            source's own. For a dataset without them (None), labels are the numbers of the model's logits.
        verbose: shows a progress bar.

    Returns:
        An `Accuracy`; `str()` of it is one line. Names are matched to `model.labels` as in `match_classes`.

    Raises:
        ValueError: when class names match nothing or not all, labels are out of range, a picture cannot be
            read (the message names the file), or the model has no head or gives NaN.
    """
    outputs.check_classifier(model)
    top = tuple(checks.check_integer("top", k) for k in (top if isinstance(top, (tuple, list)) else (top,)))
    checks.check_integer("batch_size", batch_size)
    if isinstance(data, (str, os.PathLike)):
        data = from_folder(data)
    if isinstance(data, ImageSource):
        preprocessing = model.preprocessing if preprocessing is None else preprocessing
        outputs.check_preprocessing(model, preprocessing)
        class_names = data.class_names if class_names is None else _renamed(data, class_names)
        batches, steps = eval_batches(data, preprocessing, batch_size), -(-data.size // batch_size)
    elif hasattr(data, "as_numpy_iterator"):
        if preprocessing is not None:
            raise ValueError("preprocessing is for folders and sources; a dataset gives what the model takes")
        _check_elements(data.element_spec)
        batches, steps = data.as_numpy_iterator(), None
    else:
        raise TypeError(
            "data must be a folder, an ImageSource or a batched tf.data.Dataset of (inputs, labels); "
            f"got {type(data).__name__}"
        )
    if class_names is None:
        logits, matching = range(model.config.classes), "by number, as labels of a dataset are logits"
    else:
        logits, matching = match_classes(tuple(class_names), model.labels, model.config.classes)
    return _count(model, batches, np.asarray(logits), top, steps, verbose, matching)


def _count(model, batches, logits, top, steps, verbose, matching):
    bar = keras.utils.Progbar(steps, unit_name="batch", verbose=int(checks.check_flag("verbose", verbose)))
    score = outputs.scorer(model, compiled=steps != 1)
    count, correct = 0, dict.fromkeys(top, 0)
    for step, (inputs, labels) in enumerate(batches, start=1):
        ranks = _ranks(score(inputs), logits[_checked(labels, len(logits))])
        count += len(ranks)
        for k in correct:
            correct[k] += int((ranks < k).sum())
        bar.update(step, finalize=False)
    if not count:
        raise ValueError("data must hold at least one picture; it holds none")
    bar.update(step, finalize=True)
    return Accuracy(count, correct, matching)


def _ranks(scores, targets):
    """Place of each target (batch,) in its scores (batch, classes), from 0; of equals the first leads."""
    mine = np.take_along_axis(scores, targets[:, None], axis=1)
    is_before = (scores > mine) | ((scores == mine) & (np.arange(scores.shape[1]) < targets[:, None]))
    return is_before.sum(axis=1)


def _check_elements(spec):
    if not isinstance(spec, tuple) or len(spec) != 2:
        raise ValueError(f"data must be a dataset of batches (inputs, labels); its elements are {spec}")


def _checked(labels, classes):
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"data must give integer labels of shape (batch,); got {labels.dtype} of shape {labels.shape}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels must be from 0 to {classes - 1}, the last class; a batch has {labels.min()} to {labels.max()}"
        )
    return labels


def _renamed(source, class_names):
    if len(class_names) != len(source.class_names):
        raise ValueError(
            f"class_names must name the {len(source.class_names)} classes of the data; got {len(class_names)} names"
        )
    return class_names
