"""Runs of plain `fit` with `Resume` that take a second, and what breaks them off."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit import Model
from keras_vit.training import Resume

EPOCHS, STEPS = 3, 6
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(90, 4)).astype("float32"), (np.arange(90) % 3).astype("int32")


class Killed(Exception):
    pass


class KillAt(keras.callbacks.Callback):
    """Ends the run after a number of calls of one kind."""

    def __init__(self, calls=None, kind="on_train_batch_end"):
        super().__init__()
        self.left = calls
        setattr(self, kind, self.count)

    def count(self, *_, **__):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Killed


def data(start_step=0):
    options = tf.data.Options()
    options.autotune.enabled = False  # as in train_pipeline, whose iterators end at once
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8).skip(start_step).with_options(options)


def make_model(optimizer=None, classes=3, rate=1e-2, **compile_arguments):
    """Eager on TensorFlow, which saves the compilation in many short runs; test_kill.py has the compiled ones."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, activation="relu")(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Dropout(0.3)(x))
    model = Model(inputs, keras.layers.Dense(classes)(x))
    schedule = keras.optimizers.schedules.CosineDecay(rate, EPOCHS * STEPS)
    model.compile(
        optimizer or keras.optimizers.AdamW(schedule, use_ema=True, gradient_accumulation_steps=4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **{"run_eagerly": keras.backend.backend() == "tensorflow", **compile_arguments},
    )
    return model


def fit(workdir, *others, model=None, epochs=EPOCHS, validation=True, every_steps=5, **arguments):
    """One start of the command; returns all that a run leaves."""
    model = model or make_model()
    resume = Resume(workdir, every_steps=every_steps, **arguments)
    history = model.fit(
        data(resume.step),
        epochs=epochs,
        steps_per_epoch=STEPS,
        validation_data=data().take(2) if validation else None,
        callbacks=[resume, *others],
        shuffle=False,
        verbose=0,
    )
    return model, history


def end_state(model, history):
    values = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
    return [value.tobytes() for value in values], history.history, history.epoch
