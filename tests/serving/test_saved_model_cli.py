"""TensorFlow's own command line shows and runs the folder."""

import pathlib
import subprocess
import sysconfig

import numpy as np
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import make_model

from keras_vit.serving import export

pytestmark = pytest.mark.slow
PROGRAM = pathlib.Path(sysconfig.get_path("scripts")) / "saved_model_cli"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(make_model(), tmp_path_factory.mktemp("export"), check=False)


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=True).stdout


def test_show(folder):
    shown = run("show", "--dir", folder, "--all")
    assert "signature_def['serving_default']" in shown and "inputs['image_bytes']" in shown
    assert "outputs['scores']" in shown and "shape: (-1, 5)" in shown


def test_run(folder, tmp_path):
    pixels = np.asarray(draw(0))[None]
    np.save(tmp_path / "pixels.npy", pixels)
    chosen = ["--tag_set", "serve", "--signature_def", "images_uint8"]
    run("run", "--dir", folder, *chosen, "--inputs", f"images={tmp_path / 'pixels.npy'}", "--outdir", tmp_path)
    file = tf.constant([encode(draw(0))])
    expected = tf.saved_model.load(str(folder)).signatures
    logits = expected["images_uint8"](tf.constant(pixels))["logits"]
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), logits, atol=1e-5)
    best = np.sort(tf.nn.softmax(logits)[0])[::-1][:5]
    np.testing.assert_allclose(expected["serving_default"](file)["scores"][0], best, atol=1e-6)
