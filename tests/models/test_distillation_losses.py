"""The two losses of DeiT against their formulas in NumPy."""

import keras
import numpy as np
import pytest

from keras_vit.models.distillation import DistillationLoss, to_logits

RNG = np.random.default_rng(0)
TEACHER, STUDENT = RNG.normal(size=(2, 4, 3)).astype("float32") * 3


def softmax(logits):
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def values(loss, teacher=TEACHER, student=STUDENT):
    return keras.ops.convert_to_numpy(loss.call(teacher, student))


def test_hard_is_the_cross_entropy_with_the_likeliest_class_of_the_teacher():
    expected = [-np.log(softmax(s)[t.argmax()]) for t, s in zip(TEACHER, STUDENT, strict=True)]
    np.testing.assert_allclose(values(DistillationLoss("hard")), expected, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_is_the_divergence_of_the_student_from_the_teacher_over_the_elements(temperature):
    teacher, student = softmax(TEACHER / temperature), softmax(STUDENT / temperature)
    divergence = (teacher * np.log(teacher / student)).sum(axis=-1)
    loss = DistillationLoss("soft", temperature)
    np.testing.assert_allclose(values(loss), temperature**2 * divergence / 3, rtol=1e-5)
    assert float(loss(TEACHER, STUDENT)) == pytest.approx(temperature**2 * divergence.sum() / TEACHER.size, rel=1e-5)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_nothing_is_lost_by_a_student_like_its_teacher(mode):
    np.testing.assert_allclose(values(DistillationLoss(mode), TEACHER * 100, TEACHER * 100), 0, atol=1e-5)


def test_probabilities_become_logits():
    probabilities = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], "float32")
    logits = keras.ops.convert_to_numpy(to_logits(probabilities, "softmax"))
    np.testing.assert_allclose(softmax(logits), probabilities, atol=1e-6)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(to_logits(probabilities, "linear")), probabilities)
    assert keras.backend.standardize_dtype(to_logits(keras.ops.cast(TEACHER, "bfloat16"), "linear").dtype) == "float32"
