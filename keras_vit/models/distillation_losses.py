"""The two distillation losses of DeiT (arXiv 2012.12877)."""

import keras
import numpy as np
from keras import ops

_SMALLEST = float(np.finfo("float32").tiny)


class DistillationLoss(keras.losses.Loss):
    """Difference between teacher and student, one number per image.

    `hard` is the cross-entropy of the student with the teacher's most likely class (Eq. 3), without label smoothing.
    `soft` is T^2 KL(teacher || student) of the probabilities at temperature T, divided by the number of classes, as in
    `losses.py` of facebookresearch/deit; `Distiller` explains the difference from Eq. 2.

    Args:
        mode: `hard` or `soft`.
        temperature: T of `soft`.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        logits of the teacher and of the student (batch, classes) -> (batch,) before the reduction.
    """

    def __init__(self, mode, temperature=1.0, **kwargs):
        super().__init__(**kwargs)
        self.mode = mode
        self.temperature = temperature

    def call(self, y_true, y_pred):
        return LOSSES[self.mode](y_true, y_pred, self.temperature)


def to_logits(scores, activation):
    """Return scores as float32 logits; the logits of a `softmax` are the logarithms of its probabilities."""
    scores = ops.cast(scores, "float32")
    return ops.log(ops.maximum(scores, _SMALLEST)) if activation == "softmax" else scores


def _hard(teacher, student, _):
    """Return the teacher's term of Eq. 3: CE(y_t, student), y_t = argmax(teacher)."""
    return ops.sparse_categorical_crossentropy(ops.argmax(teacher, axis=-1), student, from_logits=True)


def _soft(teacher, student, temperature):
    """Return the teacher's term of Eq. 2, divided by the number of classes."""
    teacher, student = (ops.log_softmax(logits / temperature, axis=-1) for logits in (teacher, student))
    return temperature**2 * ops.mean(ops.exp(teacher) * (teacher - student), axis=-1)


LOSSES = {"hard": _hard, "soft": _soft}
