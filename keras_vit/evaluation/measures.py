"""What `evaluate` measures besides top-k accuracy: calibration and accuracy per class."""

import collections
import dataclasses

import numpy as np

BINS = 15  # as in Table 1 of arXiv 1706.04599
_EDGES = np.linspace(0.0, 1.0, BINS + 1)
_SMALLEST = np.finfo(np.float64).tiny  # replaces a probability that was rounded to 0


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Confidence of predictions compared with their accuracy.

    Source: Guo et al. 2017, arXiv 1706.04599.

    The confidence of an image is its highest score: of the softmax of the logits, or of the output of a softmax or
    sigmoid head. Bin m of 15 contains the images with (m - 1) / 15 < confidence <= m / 15.

    Attributes:
        counts: int64 (15,), images in each bin.
        correct: int64 (15,), correctly classified images in each bin.
        confidences: float64 (15,), sum of the confidences in each bin.
        surprise: sum over all images of -log (natural) of the probability of the correct class, or of all correct
            classes together; None for a sigmoid head, whose scores do not form one distribution. A probability that
            was rounded to 0 counts as 2e-308.
    """

    counts: np.ndarray
    correct: np.ndarray
    confidences: np.ndarray
    surprise: float | None

    @property
    def error(self) -> float:
        """Expected calibration error, in [0, 1] (Eq. 3).

        It is the sum over bins of |correct - confidences| / images.
        """
        return float(np.abs(self.correct - self.confidences).sum() / self.counts.sum())

    @property
    def mean_confidence(self) -> float:
        """Mean confidence, in [0, 1]; a value above the accuracy means overconfidence."""
        return float(self.confidences.sum() / self.counts.sum())

    @property
    def negative_log_likelihood(self) -> float | None:
        """Mean cross-entropy in nats; None for a sigmoid head.

        It is the mean of -log of the probability of the correct class.
        """
        return None if self.surprise is None else float(self.surprise / self.counts.sum())

    def __str__(self):
        likelihood = self.negative_log_likelihood
        known = "" if likelihood is None else f", negative log-likelihood {likelihood:.4f}"
        return (
            f"mean confidence {100 * self.mean_confidence:.2f} %, "
            f"expected calibration error {100 * self.error:.2f} % ({BINS} bins){known}"
        )


def calibration(activation, confidences, is_right, of_right):
    """Return the `Calibration` of images.

    Args:
        activation: `classifier_activation` of the head.
        confidences: float64 (images,), the highest score of each.
        is_right: bool (images,), whether the class with this score is correct.
        of_right: float64 (images,), the score of all correct classes.

    Returns:
        A `Calibration`; None if the activation is neither softmax nor sigmoid, so that scores are not probabilities.
    """
    if activation not in (None, "softmax", "sigmoid"):
        return None
    # bin m has (m - 1) / 15 < confidence <= m / 15; the first bin also has confidence 0
    places = np.searchsorted(_EDGES[1:-1], confidences, side="left")
    counts, correct, sums = (
        np.bincount(places, weights=weights, minlength=BINS) for weights in (None, is_right, confidences)
    )
    surprise = None if activation == "sigmoid" else -np.log(np.maximum(of_right, _SMALLEST)).sum()
    return Calibration(counts, correct.astype(np.int64), sums, surprise)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassReport:
    """Accuracy per class.

    Attributes:
        names: names of the data's classes, in the order of its labels.
        labels: the model's names of these classes; None if it has none or they were not matched.
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
        """Accuracy of each class, in [0, 1], float64 (classes,); NaN without images."""
        return np.divide(self.correct, self.counts, out=np.full(len(self.counts), np.nan), where=self.counts > 0)

    @property
    def mean(self) -> float:
        """Mean per-class accuracy, in [0, 1], over the classes that have images."""
        return float(np.nanmean(self.accuracies))

    @property
    def worst(self) -> list[int]:
        """Indices of the classes that have images, worst accuracy first.

        Of equal classes, the one with most images comes first.
        """
        order = np.lexsort((-self.counts, self.accuracies))
        return [int(n) for n in order if self.counts[n]]

    def table(self, classes: int) -> str:
        """Return a table of the worst classes.

        Each row also shows the most frequent wrong prediction.

        Args:
            classes: number of rows; all classes with images if there are fewer.
        """
        most_frequent: dict[int, str] = {}
        for n, answer, count in self.confusions:
            most_frequent.setdefault(n, f"{answer} ({count})")
        rows = [("class", "right", "images", "accuracy", "most often taken for")]
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


def aligned(rows, left=()):
    """Return the text of a table; the columns in `left` are left-aligned, the others right-aligned."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = [cell.ljust(width) if n in left else cell.rjust(width) for n, (cell, width) in enumerate(cells)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
