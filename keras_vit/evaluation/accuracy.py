"""`evaluate`: top-k accuracy, calibration and accuracy per class."""

import dataclasses
import os
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import checks
from keras_vit.checkpoints.releases.release import label_set
from keras_vit.config import Preprocessing
from keras_vit.data import from_directory
from keras_vit.data.pipeline import eval_batches
from keras_vit.data.sources import ImageSource, LabelledData
from keras_vit.evaluation import outputs
from keras_vit.evaluation.calibration import Calibration, calibration
from keras_vit.evaluation.class_matching import match_classes
from keras_vit.evaluation.class_report import ClassReport, ClassTally
from keras_vit.evaluation.real_labels import right_answers
from keras_vit.models.base import ImageModel
from keras_vit.models.input_range import looked_at
from keras_vit.typing import PathLike


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Result of `evaluate`. Two results with the same counts are equal.

    Attributes:
        count: number of images.
        correct: {k: number of images whose class is among the k best}.
        matching: how the data's classes were matched to the model's logits, as text.
        left_out: number of images without any correct class (ReaL); they are not in `count`.
        classes: a `ClassReport`, the counts of each class.
        calibration: a `Calibration`; None for a head whose scores are not probabilities.
    """

    count: int
    correct: dict[int, int]
    matching: str
    left_out: int = 0
    classes: ClassReport | None = dataclasses.field(default=None, compare=False, repr=False)
    calibration: Calibration | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def top(self) -> dict[int, float]:
        """Top-k accuracy: {k: share of images with the class among the k best}."""
        return {k: right / self.count for k, right in self.correct.items()}

    def report(self, classes: int = 20) -> str:
        """Return accuracies, calibration and a table of the worst classes as text.

        Args:
            classes: number of classes in the table, 1 or above; all classes if there are fewer.

        Raises:
            ValueError: if `classes` is not an integer above 0.
        """
        checks.check_integer("classes", classes)
        lines = [str(self)]
        if self.calibration is not None:
            lines.append(str(self.calibration))
        if self.classes is not None:
            shown, known = min(classes, len(self.classes.worst)), len(self.classes.worst)
            lines.append(f"mean accuracy of {known} classes {100 * self.classes.mean:.2f} %")
            lines += ["", "Classes, worst first:" if shown == known else f"The {shown} worst of {known} classes:"]
            lines.append(self.classes.table(classes))
        return "\n".join(lines)

    def __str__(self):
        parts = [
            f"top-{k} accuracy {100 * share:.2f} % ({self.correct[k]} of {self.count})" for k, share in self.top.items()
        ]
        left_out = f"; {self.left_out} without a right answer left out" if self.left_out else ""
        return f"{', '.join(parts)}{left_out}; classes matched {self.matching}"


def evaluate(
    model: ImageModel,
    data: LabelledData,
    batch_size: int = 32,
    preprocessing: Preprocessing | None = None,
    top: int | Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    verbose: bool = False,
    labels: PathLike | None = None,
) -> Accuracy:
    """Measure the top-k accuracy of a model on labelled images.

    Memory grows with the number of classes and of distinct confusions, not with the number of images.

    Args:
        model: a classifier of keras_vit.
        data: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of (model inputs, integer
            labels).
        batch_size: images per batch; ignored for a dataset.
        preprocessing: replaces `model.preprocessing` for a folder or source.
        top: the k of the top-k accuracies, one integer or several; a k above the number of classes counts every
            image. None uses 1, and also 5 if the model has more than 5 classes.
        class_names: names of the data's classes, in the order of its labels; they replace those of the folder or
            source. For a dataset without names (None), labels are the indices of the model's logits.
        verbose: whether to show a progress bar.
        labels: path of `real.json` to measure ReaL accuracy (arXiv 2006.07159), see `read_real_labels`. The data
            must be image files of ImageNet's validation set. Each image is identified by the number in its file name;
            its folder only assigns it to a class of the report. An image counts as correct if one of its ReaL classes
            is among the k best, and is left out if it has none. (The paper reports top-1.)

    Returns:
        An `Accuracy`; `str()` of it is one line, `.report()` a table of the classes. Names are matched to
        `model.labels` as in `match_classes`.

    Raises:
        ValueError: if some class names do not match, labels are out of range, an image cannot be read (the message
            names the file), or the model has no head or returns NaN. With `labels`, also on data without files, on a
            file name without a number, and as in `read_real_labels`.
    """
    outputs.check_classifier(model)
    top = _top(model) if top is None else top if isinstance(top, (tuple, list)) else (top,)
    top = tuple(checks.check_integer("top", k) for k in top)
    checks.check_integer("batch_size", batch_size)
    if isinstance(data, (str, os.PathLike)):
        data = from_directory(data)
    if isinstance(data, ImageSource):
        preprocessing = model.preprocessing if preprocessing is None else preprocessing
        outputs.check_preprocessing(model, preprocessing)
        class_names = data.class_names if class_names is None else _renamed(data, class_names)
    elif hasattr(data, "as_numpy_iterator"):
        if preprocessing is not None:
            raise ValueError("preprocessing is for folders and sources; a dataset must contain model inputs")
        _check_elements(data.element_spec)
        data = looked_at(model, "evaluate", data)
    else:
        raise TypeError(
            "data must be a folder, an ImageSource or a batched tf.data.Dataset of (inputs, labels); "
            f"got {type(data).__name__}"
        )
    answers, left_out = None, 0
    if labels is not None:
        data, answers, left_out = _with_answers(data, labels)
        logits, matching = match_classes(label_set("imagenet2012"), model.labels, model.config.classes)
        matching += f", images to {os.fspath(labels)} by the numbers in their names"
    elif class_names is None:
        logits, matching = range(model.config.classes), "by number, as labels of a dataset are logits"
    else:
        logits, matching = match_classes(tuple(class_names), model.labels, model.config.classes)
    named = _names(model)
    of_classes = None if answers is not None or model.labels is None else tuple(named[logit] for logit in logits)
    tally = ClassTally(named if class_names is None else class_names, of_classes, named)
    right = _right(np.asarray(logits), answers, model.config.classes)
    if isinstance(data, ImageSource):
        batches, steps = eval_batches(data, preprocessing, batch_size), -(-data.size // batch_size)
    else:
        batches, steps = data.as_numpy_iterator(), None
    count, correct, calibrated = _count(model, batches, steps, right, tally, top, verbose)
    return Accuracy(count, correct, matching, left_out, tally.report(), calibrated)


def _top(model):
    return tuple(k for k in (1, 5) if k == 1 or k < model.config.classes)


def _count(model, batches, steps, right, tally, top, verbose):
    bar = keras.utils.Progbar(steps, unit_name="batch", verbose=int(checks.check_flag("verbose", verbose)))
    score = outputs.scorer(model, compiled=steps != 1)
    count, correct, calibrated = 0, dict.fromkeys(top, 0), None
    for step, (inputs, labels) in enumerate(batches, start=1):
        scores, labels = score(inputs), _checked(labels, tally.size)
        is_answer = right(labels, count)
        ranks = _ranks(scores, is_answer)
        tally.add(labels, scores.argmax(axis=1), ranks == 0)
        more = calibration(model, scores, is_answer)
        calibrated = more if calibrated is None else calibrated + more
        count += len(ranks)
        for k in correct:
            correct[k] += int((ranks < k).sum())
        bar.update(step, finalize=False)
    if not count:
        raise ValueError("data must contain at least one image; it contains none")
    bar.update(step, finalize=True)
    return count, correct, calibrated


def _right(logits, answers, classes):
    """Return the function from labels (batch,) and the number of their first image to bool (batch, classes).

    `logits` contains the logit of each class; `answers` the correct classes of each image, None to use its label.
    """

    def right(labels, first):
        numbers = labels[:, None] if answers is None else answers[first : first + len(labels)]
        found = np.zeros((len(labels), classes), bool)
        for row, right_numbers in zip(found, numbers, strict=True):
            row[logits[right_numbers]] = True
        return found

    return right


def _with_answers(data, labels):
    """Return the images with a correct class, the classes of each, and the number of images without one."""
    if not isinstance(data, ImageSource) or data.files is None:
        raise ValueError(
            "labels are looked up by file name, so data must be a folder or a source of files; "
            f"got {type(data).__name__}{' without files' if isinstance(data, ImageSource) else ''}"
        )
    answers = right_answers(labels, data.files)
    kept = [n for n, numbers in enumerate(answers) if len(numbers)]
    if not kept:
        raise ValueError(f"data must contain an image with a correct class; {labels} has none for all {data.size}")
    return data.take(kept), [answers[n] for n in kept], data.size - len(kept)


def _names(model):
    return [f"class_{n}" for n in range(model.config.classes)] if model.labels is None else model.labels


def _ranks(scores, is_answer):
    """Return the rank, from 0, of the best correct class, bool (batch, classes); of equal scores the first wins."""
    targets = np.where(is_answer, scores, -np.inf).argmax(axis=1)[:, None]
    mine = np.take_along_axis(scores, targets, axis=1)
    is_before = (scores > mine) | ((scores == mine) & (np.arange(scores.shape[1]) < targets))
    return is_before.sum(axis=1)


def _check_elements(spec):
    if not isinstance(spec, tuple) or len(spec) != 2:
        raise ValueError(f"data must be a dataset of batches (inputs, labels); its elements are {spec}")


def _checked(labels, classes):
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"data must have integer labels of shape (batch,); got {labels.dtype} of shape {labels.shape}")
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
