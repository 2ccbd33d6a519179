"""Learning rate schedules of a training run."""

import keras

from keras_vit import checks
from keras_vit.compat.saved_objects import Warmup

SCHEDULES = ("cosine", "linear", "step", "constant")
DECAY_FACTOR = 0.1
_ENDING = ("cosine", "linear")  # those with a final learning rate


def create_schedule(
    name,
    learning_rate,
    steps,
    *,
    warmup_steps=0,
    warmup_learning_rate=0.0,
    final_learning_rate=0.0,
    decay_at=(),
    decay_factor=DECAY_FACTOR,
):
    """Build a learning rate schedule: a linear warm-up, then the decay.

    With t the step, T `steps`, w `warmup_steps` and p = (t - w) / (T - w), clipped to [0, 1]:

        t < w      warmup_learning_rate + (learning_rate - warmup_learning_rate) * t / w
        cosine     final_learning_rate + (learning_rate - final_learning_rate) * (1 + cos(pi p)) / 2
        linear     final_learning_rate + (learning_rate - final_learning_rate) * (1 - p)
        step       learning_rate * decay_factor^k, where k of the shares in `decay_at` have t > share * T
        constant   learning_rate

    `cosine` with a warm-up from 0 and a final learning rate of 0 is the official fine-tuning schedule, `linear` the
    pre-training one (google-research/vision_transformer, vit_jax/utils.py), `step` that of BiT
    (google-research/big_transfer). Where Keras has a matching class, it is used: `CosineDecay`, `PolynomialDecay`,
    `PiecewiseConstantDecay`.

    Args:
        name: `cosine`, `linear`, `step` or `constant`.
        learning_rate: highest learning rate, reached after the warm-up.
        steps: optimizer steps of the whole run; later steps keep the last learning rate.
        warmup_steps: steps of the warm-up, fewer than `steps`; 0 for none.
        warmup_learning_rate: first learning rate of the warm-up.
        final_learning_rate: final value of `cosine` and `linear`, 0 or above; other schedules require 0.
        decay_at: ascending shares of the run in (0, 1), after the warm-up, at which `step` decays; only for `step`.
        decay_factor: factor of the learning rate at each of these.

    Returns:
        A `keras.optimizers.schedules.LearningRateSchedule`; for `constant` without warm-up a float.

    Raises:
        ValueError: on an unknown name or a number out of range.
    """
    checks.check_choice("schedule", name, SCHEDULES)
    learning_rate = checks.check_positive("learning_rate", learning_rate)
    if final_learning_rate < 0 or (final_learning_rate and name not in _ENDING):
        raise ValueError(
            f"final_learning_rate must be at least 0, and 0 with schedules other than {' and '.join(_ENDING)}; "
            f"got final_learning_rate={final_learning_rate}, schedule={name!r}"
        )
    if decay_at and name != "step":
        raise ValueError(f"decay_at requires schedule 'step'; got decay_at={decay_at}, schedule={name!r}")
    steps = checks.check_integer("steps", steps)
    warmup_steps = checks.check_integer("warmup_steps", warmup_steps, minimum=0)
    if warmup_steps >= steps:
        raise ValueError(
            f"warmup_steps must be below the steps of the run; got warmup_steps={warmup_steps}, steps={steps}"
        )
    if name == "cosine":
        return _cosine(learning_rate, steps, warmup_steps, warmup_learning_rate, final_learning_rate)
    after = learning_rate
    if name == "linear":
        after = keras.optimizers.schedules.PolynomialDecay(learning_rate, steps - warmup_steps, final_learning_rate)
    if name == "step":
        after = _steps_down(learning_rate, steps, warmup_steps, decay_at, decay_factor)
    return Warmup(warmup_learning_rate, learning_rate, warmup_steps, after) if warmup_steps else after


def _cosine(learning_rate, steps, warmup_steps, start, final):
    share = final / learning_rate
    if not warmup_steps:
        return keras.optimizers.schedules.CosineDecay(learning_rate, steps, alpha=share)
    return keras.optimizers.schedules.CosineDecay(
        start, steps - warmup_steps, alpha=share, warmup_target=learning_rate, warmup_steps=warmup_steps
    )


def _steps_down(learning_rate, steps, warmup_steps, decay_at, decay_factor):
    boundaries = [round(share * steps) - warmup_steps for share in decay_at]
    if not boundaries or boundaries[0] < 0:
        raise ValueError(
            "decay_at must contain at least one share of the run, after its warm-up; "
            f"got decay_at={decay_at}, warmup_steps={warmup_steps}, steps={steps}"
        )
    values = [learning_rate * decay_factor**count for count in range(len(boundaries) + 1)]
    return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, values)
