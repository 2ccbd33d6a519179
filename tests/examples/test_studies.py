"""Examples: the studies write table, CSV and figure, go on where they were, and measure on unseen images."""

import csv
import importlib
import pathlib
import re
import runpy
import sys

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.models.costs import count_macs

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """The scripts import their neighbour, as they do when Python runs them."""
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture
def study(beside):
    return importlib.import_module("study")


@pytest.fixture
def start(monkeypatch, capsys, tmp_path):
    """Function of a script's name and arguments that runs it; returns its table, {(curve, point): cells}."""

    def run(name, *arguments):
        script = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), "--output", str(tmp_path), *arguments])
        runpy.run_path(str(script), run_name="__main__")
        out = capsys.readouterr().out
        lines = [re.split(r" {2,}", line) for line in out.split("\n\n")[1].splitlines()]
        return out, {(curve, point): cells for curve, point, *cells in lines[1:]}

    return run


def rows_of(file):
    with open(file, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def is_drawn(file):
    with Image.open(file) as figure:
        return 0.01 < (np.asarray(figure.convert("L")) < 128).mean() < 0.9


def refuse(*_, **__):
    raise AssertionError("nothing was to be trained")


def vit_macs(patches, width, blocks, mlp, pixels, classes=10):
    """Of a ViT with a class token: embedding, projections and MLPs, attention, head."""
    tokens = patches + 1
    block = tokens * (4 * width**2 + 2 * width * mlp) + 2 * tokens**2 * width
    return patches * pixels * width + blocks * block + width * classes


@pytest.mark.docs
@pytest.mark.usefixtures("eagerly")
def test_scaling(start, tmp_path, monkeypatch):
    out, table = start("scaling_study", "--tiny")
    assert "trained: 3 of 3" in out and is_drawn(tmp_path / "scaling.png")
    expected = {
        ("base", "4 x 64, 128, 8"): vit_macs(16, 64, 4, 128, 64),
        ("depth", "1 x 64, 128, 8"): vit_macs(16, 64, 1, 128, 64),
    }
    base = expected["base", "4 x 64, 128, 8"]
    for names, macs in expected.items():
        assert table[names][1:3] == [f"{macs:,}", f"{macs / base:.2f}"]
        assert all(0 <= float(cell) <= 100 for cell in table[names][3:]) and len(table[names]) == 6
    assert table["base", "4 x 64, 128, 8"][2] == "1.00"
    assert len(table["untrained", "4 x 64, 128, 8"]) == 4  # nothing was learned, so only the probe says something
    rows = rows_of(tmp_path / "scaling.csv")
    assert [(row["curve"], row["steps"], row["images"]) for row in rows] == [
        ("untrained", "0", "0"),
        ("base", "1", "1294"),
        ("depth", "1", "1294"),
    ]
    assert all(f"{100 * float(row['few_shot']):.1f}" == table[row["curve"], row["point"]][-1] for row in rows)

    monkeypatch.setattr(keras_vit.VisionTransformer, "fit", refuse)
    monkeypatch.setattr(keras_vit.evaluation, "few_shot", refuse)
    again, same = start("scaling_study", "--tiny")
    assert "trained: 0 of 3" in again and same == table and rows_of(tmp_path / "scaling.csv") == rows


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_data_size(start, tmp_path, monkeypatch):
    out, table = start("data_size_study", "--tiny")
    assert "trained: 3 of 3" in out and is_drawn(tmp_path / "data_size.png")
    assert list(table) == [(name, "50 %") for name in ("ViT", "hybrid", "ResNet")]
    assert [cells[0] for cells in table.values()] == 3 * ["647"]
    assert table["ViT", "50 %"][2] == f"{vit_macs(64, 64, 3, 128, 16):,}"
    macs = [int(cells[2].replace(",", "")) for cells in table.values()]
    assert max(macs) < 1.1 * min(macs)
    for model in (keras_vit.VisionTransformer, keras_vit.BiTResNet):
        monkeypatch.setattr(model, "fit", refuse)
    again, same = start("data_size_study", "--tiny")
    assert "trained: 0 of 3" in again and same == table


@pytest.mark.docs
@pytest.mark.usefixtures("eagerly")
def test_from_scratch(start, tmp_path, monkeypatch):
    out, _ = start("from_scratch_study", "--tiny")
    assert is_drawn(tmp_path / "from_scratch.png") and out.count(" seed 0: ") == 2
    rows = rows_of(tmp_path / "from_scratch.csv")
    assert [(row["run"], row["seed"], row["step"]) for row in rows] == [("none", "0", "1"), ("hybrid", "0", "1")]
    table = [line.split() for line in out.split("\n\n")[1].splitlines()]
    assert table[0] == ["run", "1"]
    assert table[1:] == [[row["run"], f"{100 * float(row['test_accuracy']):.1f}"] for row in rows]

    monkeypatch.setattr(keras_vit.VisionTransformer, "fit", refuse)
    assert start("from_scratch_study", "--tiny")[0] == out and rows_of(tmp_path / "from_scratch.csv") == rows


def test_from_scratch_compares_runs_of_equal_cost(study):
    found = importlib.import_module("from_scratch_study")
    recipes = [found.RECIPE.replace(**changes) for _, changes in found.RUNS.values()]
    assert [(len(recipe.augment), len(recipe.mix)) for recipe in recipes] == [(0, 0), (2, 0), (3, 0), (3, 2), (3, 2)]
    configs = [recipe.configure(config) for recipe, (config, _) in zip(recipes, found.RUNS.values(), strict=True)]
    rates = [(config.drop_path_rate, config.attention_dropout_rate) for config in configs]
    assert rates == [*3 * [(0.0, 0.0)], *2 * [(0.1, 0.1)]]
    vit, hybrid = (count_macs(keras_vit.VisionTransformer(config)) for config in (found.VIT, found.HYBRID))
    assert found.VIT.grid_size == found.HYBRID.grid_size == (8, 8) and 0.95 < hybrid / vit < 1


def test_whole_cifar10_is_that_of_keras(study, monkeypatch):
    arrays = [(np.full((20, 4, 4, 3), fill, "uint8"), np.arange(20)[:, None] % 2) for fill in (7, 8)]
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: arrays)
    images = study.open_images("cifar10", limit=2)
    assert images.train.size == 18 and [len(inputs) for inputs, _ in images.test] == [2]
    assert [next(iter(part.dataset))["image"][0, 0, 0] for part in study.open_sources("cifar10")] == [7, 8]
    assert images.digest != study.open_images(limit=2).digest


@pytest.fixture
def file_of_arrays(tmp_path):
    """Path of 60 images to train on and 40 to test on, each of one pixel value that is its own."""
    levels = {"train": np.arange(60), "test": np.arange(60, 100)}
    arrays = {f"x_{part}": np.tile(found[:, None, None, None], (1, 4, 4, 3)) for part, found in levels.items()}
    labels = {f"y_{part}": found % 3 for part, found in levels.items()}
    np.savez(tmp_path / "images.npz", **{name: array.astype("uint8") for name, array in arrays.items()}, **labels)
    return tmp_path / "images.npz"


def test_what_is_measured_on_was_not_trained_on(study, file_of_arrays):
    images = study.open_images(file_of_arrays)
    trained = [element["image"][0, 0, 0] for element in images.train.dataset.as_numpy_iterator()]
    found = {}
    for name in ("validation", "test"):
        inputs, labels = map(np.concatenate, zip(*getattr(images, name).as_numpy_iterator(), strict=True))
        assert inputs.shape[1:] == (32, 32, 3)
        found[name] = np.rint(127.5 * (inputs[:, 0, 0, 0] + 1)).astype(int)
        np.testing.assert_array_equal(labels, found[name] % 3)
    assert len(found["validation"]) == 6 and sorted([*trained, *found["validation"]]) == list(range(60))
    np.testing.assert_array_equal(found["test"], np.arange(60, 100))
    few = study.open_images(file_of_arrays, limit=4)
    assert [len(inputs) for inputs, _ in few.test] == [4] and few.digest != images.digest


@pytest.fixture
def measured(study, monkeypatch):
    """List of (blocks, share, steps, seed) of each training, none of which takes place; the third one is killed."""
    calls = []

    def measure(config, images, share, recipe):
        calls.append((config.num_layers, share, recipe.steps, recipe.seed))
        if len(calls) == 3:
            raise KeyboardInterrupt
        numbers = {"steps": recipe.steps, "images": 9, "parameters": 8, "macs": 7, "train_accuracy": np.nan}
        return {**numbers, "validation_accuracy": np.nan, "few_shot": len(calls) / 10, "few_shot_std": 0.0}

    monkeypatch.setattr(study, "_measure", measure)
    return calls


@pytest.mark.docs
def test_killed_study_goes_on(study, measured, file_of_arrays, tmp_path, capsys):
    images = study.open_images(file_of_arrays)
    config = keras_vit.ViTConfig(
        name="a", image_size=4, patch_size=2, hidden_dim=4, num_layers=1, num_heads=1, mlp_dim=4
    )
    trials = [study.Trial("a", "1", config), study.Trial("a", "half", config, 0.5)]
    file = tmp_path / "study.csv"
    with pytest.raises(KeyboardInterrupt):
        study.run(trials, images, file, steps=2, seeds=2)
    assert len(rows_of(file)) == 2
    found = study.run(trials, images, file, steps=2, seeds=2)
    assert measured[:2] == [(1, 1.0, 2, 0), (1, 0.5, 2, 0)]
    assert measured[2] == measured[3] == (1, 1.0, 2, 1) and measured[4:] == [(1, 0.5, 2, 1)]
    assert [row.few_shot for row in found[trials[0]]] == [0.1, 0.4]
    assert study.mean(found[trials[1]], "few_shot") == pytest.approx(0.35)
    capsys.readouterr()
    study.print_table(("curve", "point"), {}, found)
    assert capsys.readouterr().out.splitlines()[1].split() == ["a", "1", "25.0", "15.0"]

    study.run(trials, images, file, steps=3, seeds=1)  # other settings: trained, and the rows from before stay
    assert measured[5:] == [(1, 1.0, 3, 0), (1, 0.5, 3, 0)] and len(rows_of(file)) == 6


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seeds", "0"]])
def test_counts_from_one(start, capsys, arguments):
    with pytest.raises(SystemExit):
        start("scaling_study", *arguments)
    assert "--steps and --seeds must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_training_makes_the_features_better(study, tmp_path):
    config = keras_vit.ViTConfig(
        name="base", image_size=32, patch_size=8, hidden_dim=64, num_layers=4, num_heads=4, mlp_dim=128
    )
    trials = [study.Trial("base", str(share), config, share) for share in (0.0, 1.0)]
    found = study.run(trials, study.open_images(), tmp_path / "study.csv", steps=300, seeds=1)
    untrained, trained = (rows[0].few_shot for rows in found.values())
    assert trained > untrained + 0.2
