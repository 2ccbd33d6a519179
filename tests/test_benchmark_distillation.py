"""benchmarks/distillation.py: its arms in small, and with a real teacher that its students are better for."""

import importlib
import pathlib
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import keras_vit

REPOSITORY = pathlib.Path(__file__).parents[1]
WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"


def run(monkeypatch, capsys, *words):
    """What `python -m benchmarks.distillation` prints."""
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.setattr(sys, "argv", ["distillation", *map(str, words)])
    importlib.import_module("benchmarks.distillation").main()
    return capsys.readouterr().out


def table(out):
    """arm -> percentages of the seeds and their mean, from the last lines of the output."""
    rows = re.findall(r"^ +(labels|hard|soft)((?: +[0-9.]+ %)+)$", out, re.MULTILINE)
    return {arm: [float(figure) for figure in re.findall(r"[0-9.]+", figures)] for arm, figures in rows}


@pytest.fixture
def data(tmp_path):
    labels = {"y_train": np.arange(12) % 3, "y_test": np.array([0, 1, 1, 2])}
    images = {f"x_{part}": np.zeros((len(labels[f"y_{part}"]), 8, 8, 3), "uint8") for part in ("train", "test")}
    np.savez(tmp_path / "data.npz", **labels, **images)
    return tmp_path / "data.npz"


@pytest.mark.slow
def test_each_arm_and_seed_is_trained_alike_and_printed(data, tmp_path, monkeypatch, capsys):
    config = {"patch_size": 4, "hidden_dim": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 8, "classes": 3}
    teacher = keras_vit.VisionTransformer(keras_vit.ViTConfig(name="toy", image_size=8, **config))
    teacher.save(tmp_path / "teacher.keras")
    runs = []

    def train(recipe, source, workdir, *, model, verbose):
        """No training: what is taught answers class 1, what has no teacher class 0."""
        is_taught = isinstance(model, keras_vit.Distiller)
        runs.append((recipe.seed, recipe.steps, source.size, getattr(model, "mode", None)))
        student = model.student if is_taught else model
        student.layers[-1].bias.assign(np.eye(3)[int(is_taught)] * 100)
        return SimpleNamespace(model=student, history={"loss": [1.0]})

    monkeypatch.setattr(keras_vit, "train", train)
    words = (
        "--data",
        data,
        "--teacher",
        tmp_path / "teacher.keras",
        "--images",
        9,
        "--steps",
        7,
        "--seeds",
        2,
        "--arms",
        "labels",
        "soft",
    )
    out = run(monkeypatch, capsys, *words)
    assert runs == [(seed, 7, 9, mode) for seed in range(2) for mode in (None, "soft")]
    assert table(out) == {"labels": [25.0] * 3, "soft": [50.0] * 3}


@pytest.mark.slow
def test_a_real_teacher_is_worth_more_than_the_labels_alone(real_data, monkeypatch, capsys):
    """A ViT-Ti, fine-tuned at 64 pixels, and three students of each kind."""
    files = ("--weights", real_data / "weights" / WEIGHTS, "--data", real_data / "cifar10_small.npz")
    found = table(run(monkeypatch, capsys, *files))
    for arm in ("hard", "soft"):  # three seeds and their mean
        assert [taught > labels for taught, labels in zip(found[arm], found["labels"], strict=True)] == [True] * 4
