"""`evaluate`: top-k accuracy, calibration and accuracy per class."""

import collections
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from keras_vit import checks
from keras_vit.checkpoints.releases.release import label_set
from keras_vit.compat.inference import inference
from keras_vit.config import Preprocessing
from keras_vit.data.sources import LabelledData, check_class_names
from keras_vit.data.task_sources import TaskSource
from keras_vit.evaluation import outputs
from keras_vit.evaluation.class_matching import match_classes
from keras_vit.evaluation.labelled import check_labels, open_labelled
from keras_vit.evaluation.real_labels import right_answers
from keras_vit.evaluation.task_results import TaskScores, evaluate_task
from keras_vit.files import aligned
from keras_vit.models import TaskModel
from keras_vit.models.base import ImageModel
from keras_vit.models.encoders import labels_of, score_activations
from keras_vit.typing import PathLike

BINS = 15  # as in Table 1 of arXiv 1706.04599
_EDGES = np.linspace(0.0, 1.0, BINS + 1)
_SMALLEST = np.finfo(np.float64).tiny  # replaces a probability that was rounded to 0


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Compare the confidence of predictions with their accuracy.

    Source: Guo et al. 2017, arXiv 1706.04599.

    The confidence of an image is its highest score: the maximum of the softmax of the logits, or of the output of a
    softmax or sigmoid head. Bin m of 15 contains the images with (m - 1) / 15 < confidence <= m / 15.

    Attributes:
        counts: int64 (15,), images in each bin.
        correct: int64 (15,), correctly classified images in each bin.
        confidences: float64 (15,), sum of the confidences in each bin.
        surprise: sum over all images of -log (natural) of the probability of the correct class (of all correct classes
            together, if there are several); None for a sigmoid head, whose scores do not form one distribution. A
            probability that was rounded to 0 counts as 2e-308.
    """

    counts: np.ndarray
    correct: np.ndarray
    confidences: np.ndarray
    surprise: float | None

    @property
    def error(self) -> float:
        """Return the expected calibration error, in [0, 1] (Eq. 3).

        It is the sum over bins of |correct - confidences| / images.
        """
        return float(np.abs(self.correct - self.confidences).sum() / self.counts.sum())

    @property
    def mean_confidence(self) -> float:
        """Return the mean confidence, in [0, 1].

        A value above the accuracy means overconfidence."""
        return float(self.confidences.sum() / self.counts.sum())

    @property
    def negative_log_likelihood(self) -> float | None:
        """Return the mean cross-entropy in nats; None for a sigmoid head.

        It is the mean of -log of the probability of the correct class.
        """
        return None if self.surprise is None else float(self.surprise / self.counts.sum())

    def __str__(self):
        likelihood = self.negative_log_likelihood
        known = "" if likelihood is None else f", negative log-likelihood {likelihood:.4f}"
        error = f"expected calibration error {100 * self.error:.2f} % ({BINS} bins)"
        return f"mean confidence {100 * self.mean_confidence:.2f} %, {error}{known}"


def calibration(activation, confidences, is_right, of_right):
    """Return the `Calibration` of images.

    Args:
        activation: `score_activation` of the config.
        confidences: float64 (images,), the highest score of each.
        is_right: bool (images,), whether the class with this score is correct.
        of_right: float64 (images,), the score of all correct classes.

    Returns:
        A `Calibration`; None if the activation is neither softmax nor sigmoid, because the scores are not
        probabilities.
    """
    if activation not in ("softmax", "sigmoid"):
        return None
    # bin m has (m - 1) / 15 < confidence <= m / 15; the first bin also has confidence 0
    places = np.searchsorted(_EDGES[1:-1], confidences, side="left")
    counts, correct, sums = (np.bincount(places, some, minlength=BINS) for some in (None, is_right, confidences))
    surprise = None if activation == "sigmoid" else -np.log(np.maximum(of_right, _SMALLEST)).sum()
    return Calibration(counts, correct.astype(np.int64), sums, surprise)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassReport:
    """Hold the accuracy per class.

    Attributes:
        names: names of the data's classes, in the order of its labels.
        labels: the model's names of these classes; None if the model has no names or they were not matched.
        counts: int64 (classes,), images of each class.
        correct: int64 (classes,), correctly classified images of each class.
        confusions: `(index of the class, the model's name of the wrong class, images)` for each wrong class that was
            predicted, the most frequent first.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    counts: np.ndarray
    correct: np.ndarray
    confusions: tuple[tuple[int, str, int], ...]

    @property
    def accuracies(self) -> np.ndarray:
        """Return the accuracy of each class: float64 (classes,) in [0, 1].

        It is NaN for a class without images."""
        return np.divide(self.correct, self.counts, out=np.full(len(self.counts), np.nan), where=self.counts > 0)

    @property
    def mean(self) -> float:
        """Return the mean accuracy, in [0, 1], of the classes that have images."""
        return float(np.nanmean(self.accuracies))

    @property
    def worst(self) -> list[int]:
        """Return the indices of the classes with images, worst accuracy first.

        Among classes with equal accuracy, the one with the most images comes first.
        """
        return [int(n) for n in np.lexsort((-self.counts, self.accuracies)) if self.counts[n]]

    def table(self, classes: int) -> str:
        """Return a table of the worst classes.

        Each row also shows the most frequent wrong prediction.

        Args:
            classes: number of rows; all classes with images if there are fewer.
        """
        most_frequent: dict[int, str] = {}
        for n, answer, count in self.confusions:
            most_frequent.setdefault(n, f"{answer} ({count})")
        rows = [("class", "correct", "images", "accuracy", "most often predicted as")]
        for n in self.worst[:classes]:
            share = f"{100 * self.accuracies[n]:.1f} %"
            rows.append((self._title(n), self.correct[n], self.counts[n], share, most_frequent.get(n, "")))
        return aligned(rows, left=(0, 4))

    def _title(self, n):
        name, label = self.names[n], None if self.labels is None else self.labels[n]
        return name if label is None or label.casefold() == name.casefold() else f"{name} ({label})"


def class_report(names, labels, logit_names, numbers, best, is_right):
    """Return the `ClassReport` of images.

    Args:
        names, labels: as in `ClassReport`.
        logit_names: names of the model's logits.
        numbers: integers (images,), the class of each image in the order of `names`.
        best: integers (images,), the predicted logits.
        is_right: bool (images,), whether these are correct.
    """
    counts, correct = (np.bincount(some, minlength=len(names)) for some in (numbers, numbers[is_right]))
    confused = collections.Counter(zip(numbers[~is_right].tolist(), best[~is_right].tolist(), strict=True))
    ordered = sorted(confused.items(), key=lambda entry: (-entry[1], entry[0]))
    confusions = tuple((number, logit_names[logit], count) for (number, logit), count in ordered)
    return ClassReport(tuple(names), labels, counts, correct, confusions)


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Hold the result of `evaluate`.

    Comparing two results ignores `classes` and `calibration`.

    Attributes:
        count: number of images.
        correct: {k: number of images whose class is among the k best}.
        matching: string that describes how the data's classes were matched to the model's logits.
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
        """Return {k: share of the images whose class is among the k best}."""
        return {k: right / self.count for k, right in self.correct.items()}

    def report(self, classes: int = 20) -> str:
        """Return accuracies, calibration and a table of the worst classes as a string.

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
        parts = [f"top-{k} accuracy {100 * x:.2f} % ({self.correct[k]} of {self.count})" for k, x in self.top.items()]
        left_out = f"; {self.left_out} without a correct class left out" if self.left_out else ""
        return f"{', '.join(parts)}{left_out}; classes matched {self.matching}"


@overload
def evaluate(
    model: ImageModel,
    data: LabelledData,
    batch_size: int | None = None,
    preprocessing: Preprocessing | None = None,
    top: int | Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    verbose: bool = False,
    labels: PathLike | None = None,
) -> Accuracy: ...


@overload
def evaluate(
    model: TaskModel, data: TaskSource, batch_size: int | None = None, *, verbose: bool = False, **options: Any
) -> TaskScores: ...


def evaluate(
    model: ImageModel | TaskModel,
    data: LabelledData | TaskSource,
    batch_size: int | None = None,
    preprocessing: Preprocessing | None = None,
    top: int | Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    verbose: bool = False,
    labels: PathLike | None = None,
    **options: Any,
) -> Accuracy | TaskScores:
    """Measure the accuracy of a classifier, or the scores of a task model.

    Images are read batch by batch; the accuracy needs 40 bytes of memory per image until it is complete. Of a task
    model, the kind of the data decides what is measured:

    - `semantic`: mIoU of `EoMT`, `DPTSegmentation` or `LinearSegmentation`.
    - `panoptic`: panoptic quality of `EoMT`, as panopticapi computes it (arXiv 1801.00868).
    - `instances`: COCO's AP of the best 100 masks of `EoMT`.
    - `boxes`: COCO's AP of the best 100 boxes of `YOLOS`, of any score.
    - `keypoints`: COCO's AP of `ViTPose` for the true boxes of the persons that have labelled keypoints, without
      flip test; and the share of keypoints within 0.2 times the longer side of the box (`pck`). The score of a person
      is the mean of the scores above 0.2 of its keypoints. AP is for COCO's 17 keypoints.
    - `depth`: AbsRel, RMSE and delta1 to delta3 of `DPT`, averaged over the images. The answers of relative models are
      aligned with the true disparity of each image.

    Args:
        model: as in `predict`.
        data: a folder of class folders, an `ImageSource`, or a batched `tf.data.Dataset` of (model inputs, integer
            labels). For task models, a `TaskSource`.
        batch_size: images per batch; ignored for a dataset. None is 32, and 8 for task models.
        preprocessing: replaces `model.preprocessing` for a folder or source.
        top: the k of the top-k accuracies, one integer or several; with a k above the number of classes, every image
            counts as correct. None uses 1, and also 5 if the model has more than 5 classes.
        class_names: names of the data's classes, in the order of its labels; they replace those of the folder or
            source. None uses the attribute `class_names` of a dataset, as Keras's `image_dataset_from_directory` sets
            it, if it has the names of the model in any order. The labels of other datasets are indices of logits.
        verbose: whether to show a progress bar.
        labels: path of `real.json` to measure ReaL accuracy (arXiv 2006.07159), see `read_real_labels`. The data
            must be image files of ImageNet's validation set. Each image is identified by the number in its file name;
            its folder only assigns it to a class of the report. An image counts as correct if one of its ReaL classes
            is among the k best, and is left out if it has none. (The paper reports top-1.)
        **options: of task models, which have none of the four above. `panoptic`: `threshold` and `overlap`, see
            `keras_vit.tasks.panoptic`, both 0.8. `depth`: `max_depth`, the largest depth in metres that is measured,
            such as 80 for KITTI and 10 for NYU; None has no limit, and relative models need one. The smallest is 0.001.

    Returns:
        An `Accuracy`, or for a task model a `TaskScores`; `str()` of it is one line, and `.report()` includes a table
        of the classes. Names are matched to `model.labels` as in `match_classes`.

    Raises:
        TypeError: on an option that the model or the kind of the data does not have.
        ImportError: for `instances`, `boxes` and `keypoints` without pycocotools (extra `coco`).
        ValueError: if some class names do not match, labels are out of range, an image cannot be read (the message
            names the file), or the model has no head or returns NaN. With `labels`, also on data without files, on a
            file name without a number, and as in `read_real_labels`. Of a task model, if the kind of the data does not
            fit it, or the data contain nothing to measure.
    """
    checks.check_flag("verbose", verbose)
    if isinstance(model, TaskModel):
        others = {"preprocessing": preprocessing, "top": top, "class_names": class_names, "labels": labels}
        options |= {name: value for name, value in others.items() if value is not None}
        return evaluate_task(model, data, batch_size, verbose, options)
    if options:
        raise TypeError(f"{next(iter(options))} is an option for task models; got a {type(model).__name__}")
    outputs.check_classifier(model)
    model_labels, names = labels_of(model), outputs.logit_names(model)
    classes = len(names)
    if top is None:
        top = (1, 5) if classes > 5 else (1,)
    top = [checks.check_integer("top", k) for k in (top if isinstance(top, (tuple, list)) else (top,))]
    [opened] = open_labelled({"data": data}, model, preprocessing, 32 if batch_size is None else batch_size)
    named = tuple(getattr(data, "class_names", None) or ())  # of Keras's image_dataset_from_directory, for instance
    if class_names is None and named and sorted(named) == sorted(model_labels or ()):
        class_names = named
    if class_names is not None and opened.class_names is not None and len(class_names) != len(opened.class_names):
        raise ValueError(f"class_names must name the {len(opened.class_names)} classes of data; got {len(class_names)}")
    class_names = opened.class_names if class_names is None else check_class_names(class_names)
    kept, answers, left_out, model_names = None, None, 0, None
    if labels is not None:
        kept, answers, left_out = _with_answers(opened.source, labels)
        logits, matching = match_classes(label_set("imagenet2012"), model_labels, classes)
        matching += f", images to {os.fspath(labels)} by the numbers in their names"
    elif class_names is None:
        logits, matching = range(classes), "by number, as the labels of a dataset are indices of logits"
    else:
        logits, matching = match_classes(tuple(class_names), model_labels, classes)
    if labels is None and model_labels is not None:
        model_names = tuple(names[logit] for logit in logits)
    class_names, logits = names if class_names is None else class_names, np.asarray(logits)
    batches, steps = opened.batches(kept)
    found, first = [], 0
    forward = inference(model, compiled=steps != 1)
    for scores, numbers in outputs.run_batches(forward, model, "evaluate", "scores", batches, steps, verbose):
        numbers = check_labels("data", numbers, len(class_names))
        is_answer = np.zeros((len(numbers), classes), bool)
        for n, row in enumerate(is_answer):
            row[logits[numbers[n] if answers is None else answers[first + n]]] = True
        first += len(numbers)
        found.append((numbers, *_measured(model, scores, is_answer)))
    numbers, best, ranks, confidences, of_right = map(np.concatenate, zip(*found, strict=True))
    correct = {k: int((ranks < k).sum()) for k in top}
    of_classes = class_report(class_names, model_names, names, numbers, best, ranks == 0)
    calibrated = calibration(score_activations(model)[1], confidences, ranks == 0, of_right)
    return Accuracy(len(numbers), correct, matching, left_out, of_classes, calibrated)


def _measured(model, scores, is_answer):
    """Return four arrays (images,) of a batch.

    Args:
        model: the classifier.
        scores: float32 (images, classes).
        is_answer: bool (images, classes), the correct classes.

    Returns:
        The predicted logits; the ranks, from 0, of the best correct class (equal scores are ranked in order); the
        highest probability; the probability of all correct classes.
    """
    targets = np.where(is_answer, scores, -np.inf).argmax(axis=1)[:, None]
    mine = np.take_along_axis(scores, targets, axis=1)
    is_before = (scores > mine) | ((scores == mine) & (np.arange(scores.shape[1]) < targets))
    shares = outputs.probabilities(model, scores.astype(np.float64))
    of_right = np.where(is_answer, shares, 0.0).sum(axis=1)
    return scores.argmax(axis=1), is_before.sum(axis=1), shares.max(axis=1), of_right


def _with_answers(source, labels):
    """Return the positions of the images with a correct class, the classes of each, and how many images have none."""
    if source is None or source.files is None:
        raise ValueError("labels are looked up by file name, so data must be a folder or a source of files")
    answers = right_answers(labels, source.files)
    kept = [n for n, numbers in enumerate(answers) if len(numbers)]
    if not kept:
        raise ValueError(f"data must contain an image with a correct class in {labels}; none of {source.size} has one")
    return kept, [answers[n] for n in kept], source.size - len(kept)
