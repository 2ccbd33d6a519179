"""Those of benchmarks/ that measure numbers; the others measure time."""

import importlib.util
import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import keras_vit

REPOSITORY = pathlib.Path(__file__).parents[1]
WEIGHTS = "ViT-Ti_16-imagenet2012-224.npz"


def run(monkeypatch, capsys, *words):
    """What `python -m benchmarks.finetune` prints."""
    spec = importlib.util.spec_from_file_location("finetune", REPOSITORY / "benchmarks" / "finetune.py")
    finetune = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(finetune)
    monkeypatch.setattr(sys, "argv", ["finetune", *map(str, words)])
    finetune.main()
    return capsys.readouterr().out


def test_each_seed_and_their_mean_are_printed(monkeypatch, capsys, tmp_path):
    """Without the training: the model of seed 0 answers class 0, and so on."""
    recipes = []

    def train(recipe, source, workdir, *, model, weights, verbose):
        recipes.append((recipe, source.size, model, weights))
        config = {"patch_size": 4, "hidden_dim": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 8, "classes": 2}
        model = keras_vit.VisionTransformer(keras_vit.ViTConfig(name="toy", image_size=8, **config))
        model.layers[-1].bias.assign(np.eye(2)[recipe.seed] * 100)
        return SimpleNamespace(model=model)

    monkeypatch.setattr(keras_vit, "train", train)
    labels = {"y_train": np.arange(6) % 2, "y_test": np.array([0, 0, 0, 1])}
    images = {f"x_{part}": np.zeros((len(labels[f"y_{part}"]), 8, 8, 3), "uint8") for part in ("train", "test")}
    np.savez(tmp_path / "data.npz", **labels, **images)
    words = ("--weights", "w.npz", "--data", tmp_path / "data.npz", "--seeds", 2, "--steps", 7)
    out = run(monkeypatch, capsys, *words, "--set", "warmup_steps=2")
    assert "seed 0: top-1 accuracy 75.00 %" in out and "seed 1: top-1 accuracy 25.00 %" in out
    assert "mean of 2 seeds: 50.00 %" in out
    assert [(r.seed, r.steps, r.warmup_steps, r.batch_size, *others) for r, *others in recipes] == [
        (seed, 7, 2, 64, 6, "ViT-Ti_16", "w.npz") for seed in range(2)
    ]


@pytest.mark.slow
def test_a_real_model_learns_at_96_pixels(real_data, monkeypatch, capsys):
    """In four minutes; README has the figures at 224 pixels, which take an hour."""
    words = ("--weights", real_data / "weights" / WEIGHTS, "--data", real_data / "cifar10_small.npz", "--seeds", 1)
    out = run(monkeypatch, capsys, *words, "--image-size", 96, "--set", "dtype=float32")
    assert "14 x 14 -> 6 x 6" in out
    assert float(out.rsplit("mean of 1 seeds: ", 1)[1].split()[0]) > 85
