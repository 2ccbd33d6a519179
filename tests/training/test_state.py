import keras
import numpy as np
import pytest

from keras_vit import Model
from keras_vit.training import CheckpointError
from keras_vit.training.identity import describe_optimizer
from keras_vit.training.state import read_state, write_state


@pytest.fixture
def model():
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.BatchNormalization()(keras.layers.Dense(3)(inputs)))
    model.compile("sgd", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=(np.ones((2, 3), "float32"), np.ones((2, 3), "float32")))
    return model


def of_replicas(arrays, values):
    """The state of as many replicas as there are values: their moving means and their sums of the loss."""
    arrays = dict(arrays)
    for name, array in arrays.items():
        if name.endswith(".moving_mean"):
            arrays[name] = np.stack([np.full(3, value, "float32") for value in values])
        elif name.startswith("metrics."):
            arrays[name] = np.array(values, array.dtype)
        elif name.endswith(".moving_variance"):
            arrays[name] = np.repeat(array, len(values), axis=0)
    return arrays


def test_statistics_of_more_replicas_are_averaged_and_metrics_summed(model):
    write_state(model, of_replicas(read_state(model), [1.0, 4.0]))
    assert model.layers[-1].moving_mean.numpy().tolist() == [2.5] * 3
    assert model.layers[-1].moving_variance.numpy().tolist() == [1.0] * 3
    assert {float(variable.numpy()) for variable in model.metrics_variables} == {5.0}


def test_what_is_read_is_written(model):
    model.layers[-1].moving_mean.assign([1.0, 2.0, 3.0])
    arrays = read_state(model)
    model.layers[-1].moving_mean.assign([0.0, 0.0, 0.0])
    write_state(model, arrays)
    assert model.layers[-1].moving_mean.numpy().tolist() == [1.0, 2.0, 3.0]


def test_statistics_of_another_shape_are_refused(model):
    arrays = of_replicas(read_state(model), [1.0, 4.0])
    name = next(name for name in arrays if name.endswith(".moving_mean"))
    with pytest.raises(CheckpointError, match=r"moving_mean .* is \(2,\) float32 in it, here \(3,\)"):
        write_state(model, {**arrays, name: arrays[name][:, :2]})


def test_an_optimizer_is_told_by_its_settings():
    def adam(momentum, power):
        schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 10, power=power)
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(schedule, ema_momentum=momentum, use_ema=True))

    first = describe_optimizer(adam(0.9, 1.0))
    assert describe_optimizer(adam(0.9, 1.0)) == first  # though Keras names them differently
    assert first not in (describe_optimizer(adam(0.8, 1.0)), describe_optimizer(adam(0.9, 2.0)))


def test_a_schedule_that_cannot_tell_its_settings():
    class Silent(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    assert describe_optimizer(keras.optimizers.SGD(Silent())) == {"class_name": "SGD"}
