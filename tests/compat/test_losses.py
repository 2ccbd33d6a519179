import keras
import numpy as np
import pytest

from keras_vit.compat.saved_objects import Accuracy, CrossEntropy

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 4)).astype("float32") * 3
LABELS = np.array([0, 3, 1, 1, 2])
ONE_HOT = np.eye(4, dtype="float32")[LABELS]
MIXED = (0.7 * ONE_HOT + 0.3 * ONE_HOT[::-1]).astype("float32")


def softmax_loss(logits, targets):
    return -(targets * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1)


def sigmoid_loss(logits, targets):
    """- sum over classes of t log s(x) + (1 - t) log(1 - s(x))"""
    return (np.logaddexp(0, logits) - targets * logits).sum(-1)


@pytest.mark.parametrize(("kind", "expected"), [("softmax", softmax_loss), ("sigmoid", sigmoid_loss)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None], ONE_HOT, MIXED], ids=["number", "column", "one", "mixed"])
def test_loss_is_the_formula(kind, expected, smoothing, labels):
    targets = labels if labels.shape == (5, 4) else ONE_HOT
    targets = (1 - smoothing) * targets + smoothing / 4
    loss = CrossEntropy(kind, label_smoothing=smoothing)
    np.testing.assert_allclose(float(loss(labels, LOGITS)), expected(LOGITS, targets).mean(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_probabilities_give_the_loss_of_their_logits(kind):
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    probabilities = {"softmax": softmax, "sigmoid": 1 / (1 + np.exp(-LOGITS))}[kind]
    loss = float(CrossEntropy(kind, from_logits=False)(MIXED, probabilities.astype("float32")))
    np.testing.assert_allclose(loss, float(CrossEntropy(kind)(MIXED, LOGITS)), rtol=1e-5)


def test_sigmoid_counts_every_class_of_a_multi_label_image():
    labels = np.array([[1, 1, 0, 0]], "float32")
    loss = CrossEntropy("sigmoid")(labels, LOGITS[:1])
    np.testing.assert_allclose(float(loss), sigmoid_loss(LOGITS[:1], labels)[0], rtol=1e-5)


def test_one_class_is_a_target():
    loss = CrossEntropy("sigmoid")(np.array([[0.25]], "float32"), np.array([[2.0]], "float32"))
    np.testing.assert_allclose(float(loss), np.logaddexp(0, 2.0) - 0.5, rtol=1e-6)


def test_tokens_have_labels_of_their_own():
    logits, labels = LOGITS.reshape(1, 5, 4), LABELS.reshape(1, 5)
    np.testing.assert_allclose(float(CrossEntropy()(labels, logits)), softmax_loss(LOGITS, ONE_HOT).mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (LABELS, LOGITS.argmax(-1) == LABELS),
        (LABELS[:, None], LOGITS.argmax(-1) == LABELS),
        (MIXED, LOGITS.argmax(-1) == LABELS),
        (np.ones((5, 4), "float32"), np.ones(5)),
        (1 - ONE_HOT, LOGITS.argmax(-1) != LABELS),  # any of three true classes
    ],
    ids=["integers", "column", "mixed", "all true", "multi-label"],
)
def test_accuracy(labels, expected):
    metric = Accuracy()
    metric.update_state(labels, LOGITS)
    assert float(metric.result()) == pytest.approx(expected.mean()) and 0 < expected.mean()
    assert keras.metrics.deserialize(keras.metrics.serialize(metric)).name == "accuracy"


def test_keras_still_has_a_class_per_form():
    """When this fails, CrossEntropy and Accuracy may go."""
    with pytest.raises(Exception, match="shape|Shape|rank|Rank|integer"):
        keras.losses.SparseCategoricalCrossentropy(from_logits=True)(MIXED, LOGITS)
    with pytest.raises(Exception, match="shape|Shape|rank|Rank"):
        keras.losses.CategoricalCrossentropy(from_logits=True)(LABELS, LOGITS)
