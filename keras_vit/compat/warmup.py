"""A linear warm-up before any schedule: Keras 3.15 has one inside `CosineDecay` alone.

Delete this file when Keras has it for `PolynomialDecay` and `PiecewiseConstantDecay`; tests/compat/test_warmup.py
watches for it.
"""

import numbers

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from `start` to `peak`, then follows another schedule from that one's own step 0.

        LR(t) = start + (peak - start) * t / warmup_steps    for t < warmup_steps
        LR(t) = after(t - warmup_steps)                      from there on

    Args:
        start: learning rate of step 0.
        peak: learning rate that the warm-up reaches.
        warmup_steps: length of the warm-up, at least 1.
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
