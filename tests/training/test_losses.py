import keras
import numpy as np
import pytest

from keras_vit.compat.saved_objects import Accuracy, CrossEntropy

LOGITS = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
LABELS = np.array([0, 3, 1, 1, 2])
ONE_HOT = np.eye(4)[LABELS]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("labels", [LABELS, ONE_HOT], ids=["integers", "one-hot"])
def test_softmax(smoothing, labels):
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    targets = (1 - smoothing) * ONE_HOT + smoothing / 4
    loss = CrossEntropy(label_smoothing=smoothing)(labels, LOGITS)
    np.testing.assert_allclose(float(loss), -(targets * log_p).sum(-1).mean(), rtol=1e-5)


@pytest.mark.parametrize("labels", [LABELS, ONE_HOT], ids=["integers", "one-hot"])
def test_sigmoid_is_summed_over_the_classes(labels):
    p = 1 / (1 + np.exp(-LOGITS))
    expected = -(ONE_HOT * np.log(p) + (1 - ONE_HOT) * np.log(1 - p)).sum(-1).mean()
    np.testing.assert_allclose(float(CrossEntropy("sigmoid")(labels, LOGITS)), expected, rtol=1e-5)


def test_head_bias_starts_the_sigmoid_loss_low():
    """21,843 classes: ln 2 for each from a bias of 0, next to nothing but the label's 10 from -10 (big_vision)."""
    loss, label = CrossEntropy("sigmoid"), np.array([7])
    assert float(loss(label, np.zeros((1, 21_843), "float32"))) == pytest.approx(21_843 * np.log(2), rel=1e-4)
    expected = 10 + 21_843 * np.log1p(np.exp(-10))
    assert float(loss(label, np.full((1, 21_843), -10.0, "float32"))) == pytest.approx(expected, rel=1e-4)


def test_survive_serialisation():
    loss = CrossEntropy("sigmoid", False, 0.2)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    assert (again.kind, again.label_smoothing, again.from_logits) == ("sigmoid", 0.2, False)
    assert keras.metrics.deserialize(keras.metrics.serialize(Accuracy())).name == "accuracy"


def test_one_model_trains_on_mixed_labels_and_is_validated_on_integers():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, kernel_initializer="identity")])
    model.compile("sgd", CrossEntropy(), metrics=[Accuracy()])
    history = model.fit(LOGITS, 0.6 * ONE_HOT + 0.1, validation_data=(LOGITS, LABELS), verbose=0).history
    expected = (LOGITS.argmax(-1) == LABELS).mean()
    assert history["accuracy"] == [pytest.approx(expected)] and history["val_accuracy"] == [pytest.approx(expected)]
