"""Broken runs on several replicas, with several steps per execution: they go on as on one device, bit for bit."""

import json

import pytest
from replica_process import start, wait

_SCRIPT = """
import json, sys, tempfile
from device_runs import DEVICES, compiled, make_images, optimizer, small_vit, split_cpu

split_cpu(2)
import keras, tensorflow as tf
import keras_vit
from keras_vit.training.workers import local_parts

class Killed(Exception):
    pass

class KillAt(keras.callbacks.Callback):
    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed

def make_model():
    # Each replica of TensorFlow has moving statistics of its own.
    inputs = keras.Input((16, 16, 3))
    return keras_vit.Model(inputs, small_vit(dropout_rate=0.1)(keras.layers.BatchNormalization(momentum=0.5)(inputs)))

def batches(start_step):
    return tf.data.Dataset.from_tensor_slices(make_images(96)).batch(16).repeat().skip(start_step)

def run(workdir, *others):
    keras.utils.set_random_seed(0)
    with keras_vit.distribution(name, **options):
        model = compiled(make_model(), optimizer("sgd", gradient_accumulation_steps=4))
        resume = keras_vit.training.Resume(workdir, every_steps=2)
        arguments = {"epochs": 3, "steps_per_epoch": 6, "shuffle": False, "verbose": 0}
        starts.append(resume.step)
        history = model.fit(batches(resume.step), callbacks=[resume, *others], **arguments).history
    variables = [*model.variables, *model.optimizer.variables]
    values = [keras.ops.convert_to_numpy(part) for variable in variables for part in local_parts(variable)]
    return [value.tobytes() for value in values], history

name, options = DEVICES[sys.argv[2]]
starts = []
with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
    expected = run(whole)
    for calls in (2, 3):
        try:
            run(broken, KillAt(calls))
        except Killed:
            continue
        raise RuntimeError("nothing was killed")
    found = run(broken)
print(json.dumps({"starts": starts, "same weights": found[0] == expected[0], "same history": found[1] == expected[1]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "devices"), [("tensorflow", "mirrored2"), ("jax", "data_parallel")])
def test_a_broken_run_goes_on(tmp_path, backend, devices):
    pytest.importorskip(backend)
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    started = start(script, tmp_path / "found", devices, KERAS_BACKEND=backend)
    wait([started])
    found = json.loads(started[1].read_text(encoding="utf-8").splitlines()[-1])
    assert found["same weights"] and found["same history"]
    first, second, *later = found["starts"]
    assert (first, second) == (0, 0) and later == sorted(set(later)) and later[0] > 0
