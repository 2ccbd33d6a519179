"""The learning rate of a step, as a Python number.

`optimizer.learning_rate` uses the step that the optimizer has counted; during `fit` on JAX, the optimizer does not have
that count. tests/compat/test_learning_rate.py checks the private name used here. Delete this file when Keras's
optimizers expose their schedule.
"""

import keras


def learning_rate_at(optimizer):
    """Return a function from a step, counted from 0, to the learning rate of a compiled optimizer.

    Without a schedule, every step has the current rate. A `LossScaleOptimizer` has the rate of its inner optimizer.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = optimizer._learning_rate
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return lambda step: float(schedule(step))
    rate = float(optimizer.learning_rate)
    return lambda step: rate
