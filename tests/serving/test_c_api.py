"""A C program without Python loads the folder and classifies an image from its bytes, as TensorFlow Serving does."""

import functools
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import make_model

import keras_vit
from keras_vit.serving import export

SOURCE = pathlib.Path(__file__).with_name("classify.c")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program, compiled against the headers and libraries of the installed TensorFlow."""
    path = tmp_path_factory.mktemp("program") / "classify"
    include, libraries = tf.sysconfig.get_include(), tf.sysconfig.get_lib()
    names = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command = ["gcc", f"-I{include}", str(SOURCE), "-o", str(path), f"-L{libraries}", *names, f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True, capture_output=True)
    return path


@functools.cache
def tensor_names(folder):
    """Names of the graph's tensors that the signature takes and gives."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def["serving_default"]
    given = [signature.outputs[name].name for name in ("classes", "scores", "error")]
    return [signature.inputs["image_bytes"].name, *given]


def classify(program, folder, path):
    """([(score, class), ...], error) of one file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(program), str(folder), str(path), *tensor_names(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *answers, error = done.stdout.splitlines()
    pairs = [answer.split(" ", 1) for answer in answers]
    return [(float(score), name) for score, name in pairs], error.removeprefix("error: ")


def test_it_gives_the_scores_of_python(program, tmp_path):
    folder = export(make_model(), tmp_path / "toy", check=False)
    (tmp_path / "good.jpg").write_bytes(encode(draw(0), "JPEG"))
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    answers, error = classify(program, folder, tmp_path / "good.jpg")
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    expected = served(tf.constant([(tmp_path / "good.jpg").read_bytes()]))
    assert [name.encode() for _, name in answers] == expected["classes"].numpy()[0].tolist() and error == ""
    np.testing.assert_allclose([score for score, _ in answers], expected["scores"].numpy()[0], atol=1e-5)
    answers, error = classify(program, folder, tmp_path / "bad.jpg")
    assert answers == [(0.0, "")] * 5 and error.startswith("not an image in a supported format")


def test_it_names_a_cat_and_an_espresso(program, real_data, tmp_path):
    preprocessing = keras_vit.Preprocessing(size=248, crop=224, interpolation="bicubic")
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    model = keras_vit.ViT_Ti16(weights=weights, preprocessing=preprocessing)
    folder = export(model, tmp_path, check=False, signatures=("serving_default",))
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    for name, shown in (("chelsea.png", "Egyptian cat"), ("coffee.png", "espresso")):
        # JPEG and PNG: from the file as it is, and from a JPEG of it
        image = tf.io.decode_image((real_data / "pictures" / name).read_bytes())
        (tmp_path / "image.jpg").write_bytes(tf.io.encode_jpeg(image, quality=95).numpy())
        for path in (real_data / "pictures" / name, tmp_path / "image.jpg"):
            answers, error = classify(program, folder, path)
            expected = served(tf.constant([path.read_bytes()]))["scores"].numpy()[0]
            assert answers[0][1] == shown and error == ""
            np.testing.assert_allclose([score for score, _ in answers], expected, atol=1e-5)
