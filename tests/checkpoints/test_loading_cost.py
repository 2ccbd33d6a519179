"""Loading a ViT-B/16 of 330 MiB draws no random value and needs little more memory than the model."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit.compat.initial_values import aligned_zeros, build_deferred, initialise

REPOSITORY = pathlib.Path(__file__).parents[2]

CODE = """
import inspect, json, pathlib, sys
import keras_vit
import keras
import numpy as np
import safetensors.numpy
from keras.src.backend import random
from benchmarks.load import Watched

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

folder = pathlib.Path(sys.argv[2])
files = [folder / name for name in ("B_16.npz", "B_16.safetensors", "model.safetensors.index.json")]
if sys.argv[1] == "write":
    model = keras_vit.ViT_B16()
    keras_vit.save_weights(model, files[0])
    keras_vit.save_weights(model, files[1], layout="timm")
    arrays, weight_map = safetensors.numpy.load_file(files[1]), {}
    for number in range(3):
        name, part = f"{number}.safetensors", sorted(arrays)[number::3]
        safetensors.numpy.save_file({array: arrays[array] for array in part}, folder / name)
        weight_map |= dict.fromkeys(part, name)
    files[2].write_text(json.dumps({"weight_map": weight_map}))
    sys.exit()
model = keras_vit.ViT_B16() if sys.argv[1] == "load into" else None
file = next(file for file in files if file.name == sys.argv[3])
load = Watched(lambda: keras_vit.load_weights(model, file) if model else keras_vit.ViT_B16(weights=file))
before = load.peak
draws.clear()
result = load()
after, while_loading = load.peak, len(draws)
model = model or result
with np.load(files[0]) as file:
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the files of a ViT-B/16, written in a process of its own, for the memory it takes."""
    folder = tmp_path_factory.mktemp("B_16")
    run("write", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux states the anonymous memory")
@pytest.mark.parametrize(("command", "share"), [("load", 1.15), ("load into", 0.18)])
@pytest.mark.parametrize("file", ["B_16.npz", "B_16.safetensors", "model.safetensors.index.json"])
def test_loading_draws_nothing_and_holds_the_weights_once(folder, command, share, file):
    size = (folder / "B_16.npz").stat().st_size
    found = json.loads(run(command, str(folder), file).splitlines()[-1])
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
    array = aligned_zeros((500, 300), "float32")
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
