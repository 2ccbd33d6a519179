import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import VisionTransformer
from keras_vit.serving import export
from keras_vit.training import RECIPES

REPOSITORY = pathlib.Path(__file__).parents[2]
SCRIPT = REPOSITORY / "examples" / "quickstart.py"


@pytest.fixture(scope="module")
def quickstart():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("quickstart", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.docs
def test_tiny_run_writes_and_prints_everything(tmp_path):
    done = run("--tiny", "--workdir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"^accuracy: (\d+\.\d) %$", done.stdout, re.MULTILINE)
    assert float(accuracy[1]) > 15  # a tenth is chance
    assert "Epoch 2/2" in done.stdout and "22/22" in done.stdout
    model_says, export_says = re.search(r"^digit.png +model (\d \(.{6}\)), export (.+)$", done.stdout, re.M).groups()
    assert model_says == export_says

    model = keras.models.load_model(tmp_path / "model.keras")
    assert model.labels == tuple("0123456789") and model.config.image_size == (8, 8)
    assert (tmp_path / "serving" / "1" / "saved_model.pb").is_file()
    with (
        PIL.Image.open(tmp_path / "digit.png") as digit,
        PIL.Image.open(tmp_path / "predictions.png") as sheet,
    ):
        assert digit.size == (8, 8)
        assert sheet.size == (640, 384) and len(sheet.getcolors(1 << 20)) > 10


def ask_here(exported, image):
    """`ask` of the script, without the second process."""
    answer = tf.saved_model.load(str(exported)).signatures["serving_default"](tf.constant([image.read_bytes()]))
    return answer["classes"][0, 0].numpy().decode(), float(answer["scores"][0, 0])


def guess(model, *_, **__):
    """A `fit` that is over at once."""
    model.optimizer.build(model.trainable_variables)
    model.layers[-1].kernel.assign(np.random.default_rng(0).normal(size=model.layers[-1].kernel.shape))


@pytest.mark.docs
@pytest.mark.parametrize(
    ("arguments", "ask", "message"),
    [
        pytest.param(
            (), ask_here, "at least 97 % of the held-out digits must be classified correctly", marks=pytest.mark.slow
        ),
        (("--tiny",), lambda *_: ("2", 2.0), "the exported model must predict as the model does"),
    ],
    ids=["low accuracy", "another answer"],
)
def test_failure_is_an_exit_code(quickstart, tmp_path, monkeypatch, capsys, arguments, ask, message):
    monkeypatch.setattr(quickstart, "ask", ask)
    monkeypatch.setattr(VisionTransformer, "fit", guess)
    monkeypatch.setattr(keras_vit, "export", functools.partial(export, check=False))
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--workdir", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as stop:
        quickstart.main()
    assert stop.value.code == message  # a text: printed to stderr, exit code 1
    assert "\naccuracy: " in capsys.readouterr().out


def test_script_shows_the_model_of_the_recipe(quickstart):
    assert quickstart.CONFIG == RECIPES["quickstart"].model
    assert VisionTransformer(quickstart.CONFIG).preprocessing.channels == 1


def test_sheet_marks_wrong_answers_in_red(quickstart):
    digits = [{"image": np.full((8, 8, 1), 255, "uint8"), "label": label} for label in (3, 4, 5)]
    sheet = np.asarray(quickstart.draw_sheet(digits, ["3", "9", "5"], columns=2))
    red = (sheet[..., 0] > 200) & (sheet[..., 1] < 60)
    height, width = sheet.shape[0] // 2, sheet.shape[1] // 2
    assert red[:height, width:].any()
    assert not red[:height, :width].any() and not red[height:].any()
    assert not sheet[8:72, 8:72].any()  # a white digit is drawn black on white
