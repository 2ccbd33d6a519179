"""Loading a ViT-B/16 of 330 MiB draws no random value and needs little more memory than the model."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit.compat.initial_values import aligned_empty, build_deferred, initialise

REPOSITORY = pathlib.Path(__file__).parents[2]

CODE = """
import inspect, json, resource, sys
import keras_vit
import keras
import numpy as np
from keras.src.backend import random

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def counted(function):
    def call(*args, **kwargs):
        draws.append(function.__name__)
        return function(*args, **kwargs)
    return call

def draw_functions():
    found = inspect.getmembers(random, inspect.isfunction)
    return {name: value for name, value in found if value.__module__ == random.__name__ and not name.startswith("_")}

draws = []
functions = draw_functions()
for name, function in functions.items():
    setattr(random, name, counted(function))

if sys.argv[1] == "write":
    keras_vit.save_weights(keras_vit.ViT_B16(), sys.argv[2])
    sys.exit()
model = keras_vit.ViT_B16() if sys.argv[1] == "load into" else None
before = peak()
draws.clear()
if model is None:
    model = keras_vit.ViT_B16(weights=sys.argv[2])
else:
    keras_vit.load_weights(model, sys.argv[2])
after, while_loading = peak(), len(draws)
with np.load(sys.argv[2]) as file:
    equal = all(
        np.array_equal(model.get_layer(layer).weights[index].numpy(), file[name])
        for layer, index, name in (
            ("patch_encoder", 0, "embedding/kernel"),
            ("encoder_norm", 1, "Transformer/encoder_norm/bias"),
            ("head", 0, "head/kernel"),
            ("position_embs", 0, "Transformer/posembed_input/pos_embedding"),
        )
    )
keras.layers.Dense(3).build((None, 3))
print(json.dumps({
    "functions": sorted(functions), "before": before, "after": after, "draws": while_loading,
    "draws_of_a_layer": len(draws) - while_loading, "equal": equal,
}))
"""


def run(*arguments):
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("command", "share"), [("load", 1.5), ("load into", 0.5)])
def test_loading_draws_nothing_and_holds_the_weights_once(tmp_path, command, share):
    file = tmp_path / "B_16.npz"
    try:
        run("write", str(file))  # in a process of its own, for the memory it takes
        size = file.stat().st_size
        found = json.loads(run(command, str(file)).splitlines()[-1])
    finally:
        file.unlink(missing_ok=True)
    assert 330 * 2**20 < size < 331 * 2**20
    assert found["equal"]
    assert {"normal", "uniform", "truncated_normal", "randint", "binomial", "gamma"} <= set(found["functions"])
    assert found["draws"] == 0
    assert found["draws_of_a_layer"] == 1  # the count does count
    # A new model is one file's worth; a built one is there. Importing TensorFlow took the rest of the memory before.
    assert found["after"] - found["before"] < share * size


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow copies a bare array")
@pytest.mark.parametrize("is_writeable", [True, False])
def test_an_aligned_array_becomes_the_variable_without_a_copy(is_writeable):
    array = aligned_empty((500, 300), "float32")
    assert array.shape == (500, 300) and array.dtype == np.float32 and array.ctypes.data % 64 == 0
    array[:] = 1
    array.flags.writeable = is_writeable  # what is read-only, such as a mapped file, must not be trained in
    variable, pending = build_deferred(lambda: keras.Variable("zeros", shape=(500, 300)))
    initialise(pending, {id(variable): lambda: array})
    array.flags.writeable = True
    array[0, 0] = 7
    assert float(variable[0, 0]) == (7 if is_writeable else 1)


@pytest.mark.parametrize("array", [np.ones((6, 4), "float64"), np.ones((4, 6), "float32").T, np.ones((6, 5))[:, 1:]])
def test_any_other_array_is_taken_too(array):
    variable, pending = build_deferred(lambda: keras.Variable("zeros", shape=(6, 4)))
    initialise(pending, {id(variable): lambda: array})
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), np.ones((6, 4)))
