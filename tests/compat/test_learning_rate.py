import keras
import numpy as np

from keras_vit.compat.saved_objects import learning_rate_at


def test_of_a_schedule():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    rate = learning_rate_at(keras.optimizers.SGD(schedule))
    np.testing.assert_allclose([rate(step) for step in (0, 4, 10)], [1.0, 0.6, 0.0], atol=1e-7)


def test_of_a_number():
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.learning_rate = 0.25
    assert [learning_rate_at(optimizer)(step) for step in (0, 7)] == [0.25, 0.25]


def test_of_the_optimizer_inside_a_loss_scale():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    rate = learning_rate_at(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(schedule)))
    np.testing.assert_allclose([rate(step) for step in (0, 5, 10)], [1.0, 0.5, 0.0], atol=1e-7)
