"""The learning rate of a step, on the host. Delete this file when an optimizer of Keras tells its schedule.

`optimizer.learning_rate` computes the rate of the step that the optimizer has counted; while fit runs on JAX, that
count is not in the optimizer. tests/compat/test_learning_rate.py watches over the private name used here.
"""

import keras


def learning_rate_at(optimizer):
    """Returns a function from a step, counted from 0, to the learning rate that a compiled optimizer has in it.

    An optimizer without a schedule has in every step the rate of now. That of a `LossScaleOptimizer` is the one of the
    optimizer inside.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = optimizer._learning_rate
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return lambda step: float(schedule(step))
    rate = float(optimizer.learning_rate)
    return lambda step: rate
