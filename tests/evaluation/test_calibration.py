"""Calibration: bins, expected calibration error and log-likelihood against plain NumPy and scikit-learn."""

import types

import numpy as np
import pytest
import scipy.special
import sklearn.metrics

from keras_vit.config import ImageConfig
from keras_vit.evaluation import accuracy
from keras_vit.evaluation.accuracy import _measured

CLASSES = 7
RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.normal(size=(400, CLASSES))).astype(np.float32)
LABELS = np.where(RNG.random(400) < 0.6, LOGITS.argmax(axis=1), RNG.integers(0, CLASSES, 400))
ONE_RIGHT = np.eye(CLASSES, dtype=bool)[LABELS]


def head(activation):
    config = ImageConfig(name="head", image_size=8, classes=CLASSES, classifier_activation=activation)
    return types.SimpleNamespace(config=config)


def calibration(model, scores, right):
    """As `evaluate` does it: figures of each image by batches, then all of them."""
    figures = [_measured(model, scores[n : n + 64], right[n : n + 64]) for n in range(0, len(scores), 64)]
    _, ranks, confidences, of_right = map(np.concatenate, zip(*figures, strict=True))
    return accuracy.calibration(model.config.score_activation, confidences, ranks == 0, of_right)


def by_definition(probabilities, is_right):
    """Eq. 3 of arXiv 1706.04599, bin by bin."""
    confidences, error = probabilities.max(axis=1), 0.0
    for m in range(1, 16):
        inside = (confidences > (m - 1) / 15) & (confidences <= m / 15)
        if inside.any():
            error += inside.sum() / len(inside) * abs(is_right[inside].mean() - confidences[inside].mean())
    return error


def test_error_and_likelihood_are_those_of_the_definitions():
    probabilities = scipy.special.softmax(LOGITS.astype(np.float64), axis=1)
    found = calibration(head(None), LOGITS, ONE_RIGHT)
    is_right = probabilities.argmax(axis=1) == LABELS
    assert found.error == pytest.approx(by_definition(probabilities, is_right), rel=1e-12)
    assert found.mean_confidence == pytest.approx(probabilities.max(axis=1).mean(), rel=1e-12)
    expected = sklearn.metrics.log_loss(LABELS, probabilities, labels=range(CLASSES))
    assert found.negative_log_likelihood == pytest.approx(expected, rel=1e-9)
    assert (found.counts.sum(), found.correct.sum()) == (400, is_right.sum())
    assert 0.05 < found.error < found.mean_confidence  # too sure of itself on purpose: the test can fail


def test_a_softmax_head_is_taken_as_it_is():
    given = scipy.special.softmax(LOGITS, axis=1)
    found, logits = calibration(head("softmax"), given, ONE_RIGHT), calibration(head(None), LOGITS, ONE_RIGHT)
    assert found.error == pytest.approx(logits.error, abs=1e-6)
    assert found.negative_log_likelihood == pytest.approx(logits.negative_log_likelihood, rel=1e-5)


def test_scores_of_a_sigmoid_head_are_confidences_without_a_likelihood():
    given = scipy.special.expit(LOGITS)
    found = calibration(head("sigmoid"), given, ONE_RIGHT)
    assert found.error == pytest.approx(by_definition(given.astype(np.float64), given.argmax(axis=1) == LABELS))
    assert found.negative_log_likelihood is None
    assert str(found).endswith("(15 bins)")


def test_other_heads_have_no_confidence():
    assert calibration(head("relu"), LOGITS, ONE_RIGHT) is None


def test_right_classes_of_an_image_share_their_probability():
    right = ONE_RIGHT | np.eye(CLASSES, dtype=bool)[(LABELS + 2) % CLASSES]
    probabilities = scipy.special.softmax(LOGITS.astype(np.float64), axis=1)
    found = calibration(head(None), LOGITS, right)
    of_both = probabilities[np.arange(400), LABELS] + probabilities[np.arange(400), (LABELS + 2) % CLASSES]
    assert found.negative_log_likelihood == pytest.approx(-np.log(of_both).mean(), rel=1e-12)
    assert found.correct.sum() == right[np.arange(400), LOGITS.argmax(axis=1)].sum()


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    scores = np.array([[1 / 3, 1 / 3, 1 / 3], [0.2, 0.2, 0.6], [0.0, 0.0, 1.0]])
    found = calibration(head("softmax"), scores, np.eye(3, dtype=bool))
    assert np.flatnonzero(found.counts).tolist() == [4, 8, 14]  # 5/15, 9/15 and 15/15


def test_a_probability_of_zero_gives_a_finite_likelihood():
    found = calibration(head("softmax"), np.array([[1.0, 0.0]], np.float32), np.array([[False, True]]))
    assert found.negative_log_likelihood == pytest.approx(-np.log(np.finfo(float).tiny))
    assert found.error == 1.0
