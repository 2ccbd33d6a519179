import keras
import numpy as np
import pytest

from keras_vit.training.losses import classification_loss

LOGITS = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
LABELS = np.array([0, 3, 1, 1, 2])


def expected_loss(logits, labels, smoothing):
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = (1 - smoothing) * np.eye(logits.shape[-1])[labels] + smoothing / logits.shape[-1]
    return -(targets * log_p).sum(-1).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_logits(smoothing, shape):
    loss = classification_loss(smoothing)(LABELS.reshape(shape), LOGITS)
    np.testing.assert_allclose(float(loss), expected_loss(LOGITS, LABELS, smoothing), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_probabilities(smoothing):
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    loss = classification_loss(smoothing, from_logits=False)(LABELS, probabilities)
    np.testing.assert_allclose(float(loss), expected_loss(LOGITS, LABELS, smoothing), rtol=1e-5)


def test_smoothed_loss_survives_serialisation():
    loss = classification_loss(0.2, from_logits=False)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    assert (again.label_smoothing, again.from_logits) == (0.2, False)


def test_refuses_a_smoothing_of_one():
    with pytest.raises(
        ValueError, match=r"label_smoothing must be a number in \[0, 1\); got label_smoothing=1.0"
    ):
        classification_loss(1.0)
