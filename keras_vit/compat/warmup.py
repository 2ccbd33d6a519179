"""A linear warm-up before any schedule; Keras 3.15 has one only in `CosineDecay`.

Delete this file when Keras has it for `PolynomialDecay` and `PiecewiseConstantDecay`; tests/compat/test_warmup.py
checks for it.
"""

import numbers

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Increase linearly from `start` to `peak`, then follow another schedule from its step 0.

        LR(t) = start + (peak - start) * t / warmup_steps    for t < warmup_steps
        LR(t) = after(t - warmup_steps)                      otherwise

    Args:
        start: learning rate of step 0.
        peak: learning rate at the end of the warm-up.
        warmup_steps: length of the warm-up in steps, at least 1.
        after: Keras schedule, or a number for a constant learning rate.
    """

    def __init__(self, start, peak, warmup_steps, after):
        super().__init__()
        self.start = start
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.after = after

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = self.start + (self.peak - self.start) * step / self.warmup_steps
        return ops.where(step < self.warmup_steps, rising, self._later(ops.maximum(step - self.warmup_steps, 0.0)))

    def _later(self, step):
        return self.after if isinstance(self.after, numbers.Real) else self.after(step)

    def get_config(self):
        after = self.after
        if not isinstance(after, numbers.Real):
            after = keras.optimizers.schedules.serialize(after)
        return {"start": self.start, "peak": self.peak, "warmup_steps": self.warmup_steps, "after": after}

    @classmethod
    def from_config(cls, config):
        after = config["after"]
        if isinstance(after, dict):
            after = keras.optimizers.schedules.deserialize(after)
        return cls(**{**config, "after": after})
