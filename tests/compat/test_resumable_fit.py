import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_vit import Model


class BeginInside:
    """Has `run_fit`, as `Resume` does, and notes the steps that the callbacks are shown."""

    def __init__(self, steps_done, epoch=0):
        self.steps_done, self.epoch, self.seen = steps_done, epoch, []

    def callback(self):
        callback = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self.seen.append(f"epoch {epoch}"),
            on_train_batch_end=lambda batch, logs: self.seen.append(batch),
        )
        callback.run_fit = self.run_fit
        return callback

    def run_fit(self, model, fit, arguments):
        self.arguments = arguments
        return fit({**arguments, "initial_epoch": self.epoch}, self.steps_done)


def make_model(**arguments):
    inputs = keras.Input((1,))
    model = Model(inputs, keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)(inputs))
    model.compile("sgd", "mse", **arguments)
    return model


def numbers(count):
    """Batches of one row, x = its number."""
    return tf.data.Dataset.range(count).map(lambda n: (tf.cast(n, "float32")[None, None], tf.zeros((1, 1))))


@pytest.mark.parametrize(("steps_done", "first"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (4, [3])])
def test_the_first_epoch_begins_behind_its_steps(steps_done, first):
    inside = BeginInside(steps_done, epoch=1)
    model = make_model()
    history = model.fit(
        numbers(100), epochs=3, steps_per_epoch=4, callbacks=inside.callback(), shuffle=False, verbose=0
    )
    assert inside.seen == ["epoch 1", *first, "epoch 2", 0, 1, 2, 3]
    assert history.epoch == [1, 2]
    trained = 8 - steps_done  # a step that is only shown trains nothing
    assert int(model.optimizer.iterations) == trained


@pytest.mark.parametrize("steps_done", [0, 4, 8])
def test_several_steps_per_execution(steps_done):
    inside = BeginInside(steps_done)
    model = make_model(steps_per_execution=4)
    model.fit(numbers(100), steps_per_epoch=8, callbacks=[inside.callback()], shuffle=False, verbose=0)
    assert inside.seen == ["epoch 0", *[end for end in (3, 7) if end >= min(steps_done, 7)]]
    assert int(model.optimizer.iterations) == 8 - steps_done


def test_data_that_end_with_the_run_are_enough():
    """Keras counts the batches of data whose number it knows; those of skipped steps are not among them."""
    model = make_model()
    model.fit(numbers(10), epochs=3, steps_per_epoch=4, callbacks=[BeginInside(2).callback()], shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 10


def test_optimizer_and_metrics_are_built_before_the_callbacks_begin():
    built = []
    inside = BeginInside(0).callback()
    inside.on_train_begin = lambda logs: built.extend([len(model.optimizer.variables), len(model.metrics_variables)])
    model = make_model(metrics=["mae"])
    model.fit(numbers(4), steps_per_epoch=2, callbacks=[inside], shuffle=False, verbose=0)
    assert built == [len(model.optimizer.variables), 4] and built[0] > 1


def test_metrics_of_an_epoch_without_steps_are_what_they_were_set_to():
    inside = BeginInside(3).callback()
    inside.on_epoch_begin = lambda epoch, logs: model.metrics[0].update_state(5.0)
    model = make_model()
    history = model.fit(numbers(3), steps_per_epoch=3, callbacks=[inside], shuffle=False, verbose=0)
    assert history.history == {"loss": [5.0]}


def test_arguments_have_their_names():
    inside = BeginInside(0)
    make_model().fit(np.ones((4, 1)), np.ones((4, 1)), 2, steps_per_epoch=1, callbacks=[inside.callback()], verbose=0)
    assert set(inside.arguments) == {"x", "y", "batch_size", "steps_per_epoch", "callbacks", "verbose"}


def test_without_such_a_callback_it_is_the_fit_of_keras():
    history = make_model().fit(numbers(4), epochs=2, steps_per_epoch=2, shuffle=False, verbose=0)
    assert len(history.epoch) == 2


def test_keras_still_needs_it():
    """When fit learns to begin inside an epoch, its first argument for that will be here."""
    assert [name for name in inspect.signature(keras.Model.fit).parameters if "initial" in name] == ["initial_epoch"]
    assert {"_enumerate_iterator", "reset"} <= set(vars(EpochIterator))
    assert callable(keras.Model._symbolic_build)
