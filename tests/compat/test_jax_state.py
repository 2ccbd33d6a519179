"""fit, evaluate and predict that fail on JAX leave the model whole; in a process of its own, for its backend."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
import json
import keras
import numpy as np
import keras_vit

def model_of(kind, **arguments):
    inputs = keras.Input((3,))
    model = kind(inputs, keras.layers.Dense(2)(keras.layers.BatchNormalization()(inputs)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **arguments)
    model.fit(*rows(3), verbose=0)
    return model

def rows(width):
    return np.ones((2, width), "float32"), np.zeros((2, 2), "float32")

def after_an_error(model, method):
    try:
        arguments = rows(5)[:1] if method == "predict" else rows(5)
        getattr(model, method)(*arguments, verbose=0)
    except ValueError:
        return is_whole(model)

def is_whole(model):
    variables = (*model.variables, *model.optimizer.variables)
    return all(variable._value is not None and np.isfinite(variable).all() for variable in variables)

class Batches(keras.utils.PyDataset):
    def __init__(self, good):
        super().__init__()
        self.good = good

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index >= self.good:
            raise OSError("unreadable")
        return rows(3)

def steps_before_an_error(good, **arguments):
    model = model_of(keras_vit.Model, **arguments)
    try:
        model.fit(Batches(good), shuffle=False, verbose=0)
    except OSError:
        return int(model.optimizer.iterations) - 1 if is_whole(model) else None

found = {method: after_an_error(model_of(keras_vit.Model), method) for method in ("fit", "evaluate", "predict")}
found["first"] = steps_before_an_error(0)
found["third"] = steps_before_an_error(2)
found["inside an execution"] = steps_before_an_error(2, steps_per_execution=4)
model = model_of(keras_vit.Model)
model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
before = model.get_weights()
found["averages"] = after_an_error(model, "fit") and all(map(np.array_equal, before, model.get_weights()))
found["Keras"] = after_an_error(model_of(keras.Model), "evaluate")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_batch_of_the_wrong_shape_costs_no_weights(found, method):
    assert found[method]


@pytest.mark.parametrize(("place", "steps"), [("first", 0), ("third", 2), ("inside an execution", 2)])
def test_the_steps_before_an_error_count(found, place, steps):
    assert found[place] == steps


def test_averages_before_the_first_step_are_not_taken(found):
    assert found["averages"]


def test_keras_still_loses_them(found):
    """The fault that that part of compat/jax_fit.py is for; when this fails, delete it."""
    assert not found["Keras"]
