"""Confidence, expected calibration error and log-likelihood of a classifier."""

import dataclasses

import numpy as np

from keras_vit.evaluation import outputs

BINS = 15  # as in Table 1 of arXiv 1706.04599
_EDGES = np.linspace(0.0, 1.0, BINS + 1)
_SMALLEST = np.finfo(np.float64).tiny  # replaces a probability that was rounded to 0

# classifier_activation -> whether the head's probabilities of all classes sum to 1
_HEADS = {None: True, "softmax": True, "sigmoid": False}


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

    def __add__(self, other):
        surprise = None if self.surprise is None else self.surprise + other.surprise
        sums = (getattr(self, name) + getattr(other, name) for name in ("counts", "correct", "confidences"))
        return Calibration(*sums, surprise)

    def __str__(self):
        likelihood = self.negative_log_likelihood
        known = "" if likelihood is None else f", negative log-likelihood {likelihood:.4f}"
        return (
            f"mean confidence {100 * self.mean_confidence:.2f} %, "
            f"expected calibration error {100 * self.error:.2f} % ({BINS} bins){known}"
        )


def calibration(model, scores, right):
    """Return the `Calibration` of a batch.

    Args:
        model: the classifier.
        scores: outputs of its head, (batch, classes).
        right: bool (batch, classes), the correct classes of each image.

    Returns:
        A `Calibration`; None if the activation of the head is neither softmax nor sigmoid, so that scores are not
        probabilities.
    """
    activation = model.config.classifier_activation
    if activation not in _HEADS:
        return None
    probabilities = outputs.probabilities(model, scores.astype(np.float64))
    confidences = probabilities.max(axis=1)
    is_right = right[np.arange(len(right)), scores.argmax(axis=1)]
    # bin m has (m - 1) / 15 < confidence <= m / 15; the first bin also has confidence 0
    places = np.searchsorted(_EDGES[1:-1], confidences, side="left")
    counts, correct, sums = (
        np.bincount(places, weights=weights, minlength=BINS) for weights in (None, is_right, confidences)
    )
    of_right = np.where(right, probabilities, 0.0).sum(axis=1)
    surprise = -np.log(np.maximum(of_right, _SMALLEST)).sum() if _HEADS[activation] else None
    return Calibration(counts, correct.astype(np.int64), sums, surprise)
