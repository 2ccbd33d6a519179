"""A model that runs on JAX is exported as a plain graph of TensorFlow, and agrees with it."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

import keras_vit

ROOTS = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(keras_vit.__file__).parents[1])]
SCRIPT = """
import sys
import keras
import numpy as np
import keras_vit
from served import CONFIG, LABELS, PREPROCESSING

assert keras.backend.backend() == "jax"
model = keras_vit.VisionTransformer(CONFIG, preprocessing=PREPROCESSING, labels=LABELS)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rng = np.random.default_rng(0)
model.fit(rng.normal(size=(8, 24, 32, 3)), rng.integers(0, 7, 8), batch_size=4, verbose=0)
print(keras_vit.export(model, sys.argv[1], compute_dtype="float32"))
"""


def run(folder):
    pytest.importorskip("jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(ROOTS)}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_export_from_jax(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "top-1 the same for 8 of 8 images" in done.stderr
    served = tf.saved_model.load(str(tmp_path / "1"))
    nodes = served.signatures["images"].graph.as_graph_def().library.function
    operations = {node.op for function in nodes for node in function.node_def}
    assert "MatMul" in operations and "XlaCallModule" not in operations
