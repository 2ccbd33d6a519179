"""The loss of self-distillation (DINO, arXiv 2104.14294) and its schedules, as functions."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.typing import Tensor


def cosine_schedule(initial: float, final: float, steps: int, warmup_steps: int = 0, start: float = 0.0) -> np.ndarray:
    """Return the values of a cosine schedule, one per step, as facebookresearch/dino computes them.

    The first `warmup_steps` values rise linearly from `start` to `initial`, both included. Value i of the n
    others is `final + (initial - final) * (1 + cos(pi i / n)) / 2`, so `final` itself is not reached.

    Args:
        initial: first value after the warm-up.
        final: limit of the last values.
        steps: number of values.
        warmup_steps: number of values in the warm-up, from 0 to `steps`.
        start: first value of the warm-up.

    Returns:
        float64 (steps,).

    Raises:
        ValueError: if `steps` or `warmup_steps` is out of range.
    """
    rest = checks.check_integer("steps", steps) - checks.check_integer("warmup_steps", warmup_steps, 0)
    if rest < 0:
        raise ValueError(f"warmup_steps must not exceed steps; got warmup_steps={warmup_steps}, steps={steps}")
    falling = final + (initial - final) / 2 * (1 + np.cos(math.pi * np.arange(rest) / max(rest, 1)))
    return np.concatenate([np.linspace(start, initial, warmup_steps), falling])


def temperature_schedule(initial: float, final: float, warmup_epochs: int, epochs: int) -> np.ndarray:
    """Return the temperatures of the teacher, one per epoch.

    They rise linearly from `initial` to `final` in `warmup_epochs` values, both included, and then stay. A run of fewer
    epochs ends within the warm-up.

    Args:
        initial: temperature of the first epoch.
        final: temperature after the warm-up.
        warmup_epochs: number of epochs of the warm-up, 0 or above.
        epochs: number of values.

    Returns:
        float64 (epochs,).

    Raises:
        ValueError: if `epochs` or `warmup_epochs` is out of range.
    """
    checks.check_integer("warmup_epochs", warmup_epochs, 0)
    rest = max(checks.check_integer("epochs", epochs) - warmup_epochs, 0)
    return np.concatenate([np.linspace(initial, final, warmup_epochs), np.full(rest, float(final))])[:epochs]


def teacher_probabilities(logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """Return softmax((logits - center) / temperature), the centred and sharpened targets, in float32.

    Args:
        logits: of the teacher, (..., out_dim).
        center: broadcast to the logits.
        temperature: of the teacher, above 0.
    """
    return ops.softmax((ops.cast(logits, "float32") - center) / temperature, axis=-1)


def pair_losses(probabilities: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of each pair of a teacher's and a student's view.

    Args:
        probabilities: of the teacher, (batch, teacher views, out_dim).
        logits: of the student, (batch, student views, out_dim).
        temperature: of the student, above 0.

    Returns:
        float32 (batch, teacher views, student views).
    """
    scores = ops.log_softmax(ops.cast(logits, "float32") / temperature, axis=-1)
    return -ops.einsum("btk,bsk->bts", probabilities, scores)


def moving_average(average: Tensor, value: Tensor, momentum: float) -> Tensor:
    """Return `momentum * average + (1 - momentum) * value`; exactly `average` if both are equal.

    Args:
        average: the earlier average.
        value: the new value, of the same shape.
        momentum: in [0, 1].
    """
    return average + (1 - momentum) * (value - average)


@keras.saving.register_keras_serializable(package="keras_vit")
class SelfDistillationLoss(keras.losses.Loss):
    """Average the cross-entropies of all pairs of different views (arXiv 2104.14294, Eq. 3), one number per image.

    View t of the teacher and view t of the student are the same image, and that pair is left out.

    Args:
        temperature: of the student, above 0.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        probabilities of the teacher (batch, teacher views, out_dim) and logits of the student (batch, student views,
        out_dim), whose first views are the teacher's -> (batch,) before the reduction
    """

    def __init__(self, temperature=0.1, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def call(self, y_true, y_pred):
        is_pair = 1 - np.eye(y_true.shape[1], y_pred.shape[1], dtype="float32")
        return ops.sum(pair_losses(y_true, y_pred, self.temperature) * is_pair, axis=(1, 2)) / is_pair.sum()

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}
