"""`keras-vit probe`: what it prints and writes, and which pictures it takes."""

import csv
import json

import keras
import numpy as np
import pytest
from command_line import SAVED, run

from keras_vit.cli import parser, sources
from keras_vit.data import from_npz
from keras_vit.evaluation import few_shot

ARRAYS = ["probe", "--arrays", "drawings.npz", *SAVED]


def read(verb, *words):
    return parser.parse([verb, *map(str, words)])


def test_prints_and_writes_what_few_shot_finds(here, capsys):
    words = ["--shots", "1,5", "--seeds", "2", "--layer", "block_00", "--l2", "2", "--table", "found.csv", "--json"]
    code, out, err = run(capsys, *ARRAYS, *words)
    assert (code, err) == (0, "")
    train, test = (from_npz("drawings.npz", part) for part in ("train", "test"))
    model = keras.models.load_model("model.keras")
    expected = few_shot(model, train, test, shots=(1, 5), seeds=(0, 1), layer="block_00", l2=2.0)
    value = json.loads(out)
    assert value["accuracy"] == {str(shots): list(found) for shots, found in expected.accuracy.items()}
    assert value["mean"]["5"] == expected.mean[5] and value["std"]["5"] == expected.std[5]
    assert (value["pictures"], value["classes"], value["seeds"]) == (8, ["0", "1"], [0, 1])
    assert (value["layer"], value["l2"]) == ("block_00", 2.0)
    with open("found.csv", newline="") as file:
        rows = [(int(row["shots"]), int(row["seed"]), float(row["accuracy"])) for row in csv.DictReader(file)]
    assert rows == [(n, seed, expected.accuracy[n][seed]) for n in (1, 5) for seed in (0, 1)]


def test_text_is_the_table(here, capsys):
    _, out, _ = run(capsys, *ARRAYS, "--shots", "10")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["shots", "mean", "%"] and lines[1].split()[0] == "10" and len(lines) == 3
    assert lines[2] == "8 pictures of 2 classes, features of pooling, l2=1024"


def test_plot_shows_the_means(here, capsys):
    pytest.importorskip("keras_vit.analysis.plots", reason="needs keras_vit.analysis.plots")
    code, out, err = run(capsys, *ARRAYS, "--shots", "1,5", "--plot", "curve.png")
    assert code == 0 and out, err
    assert (here / "curve.png").read_bytes().startswith(b"\x89PNG")


class TestArrays:
    def test_probe_and_train_learn_from_one_part_and_measure_on_the_other(self, here):
        for verb in (ARRAYS, ["train", "--recipe", "quickstart", "--arrays", "drawings.npz"]):
            train, test = sources.open_sources(read(*verb), 0)
            assert (train.size, test.size) == (20, 8)
            images = [element["image"] for element in test.dataset.as_numpy_iterator()]
            np.testing.assert_array_equal(images, np.load("drawings.npz")["x_test"])

    def test_hold_out_takes_from_those_to_learn_from(self, here):
        train, held_out = sources.open_sources(read(*ARRAYS, "--hold-out", "0.25"), 0)
        assert (train.size, held_out.size) == (15, 5)

    def test_evaluate_takes_the_test_part(self, here, capsys):
        assert sources.open_source(read("evaluate", "--arrays", "drawings.npz", *SAVED)).size == 8

    def test_without_a_test_part_nothing_is_measured_on(self, here):
        np.savez("part.npz", **{f"{n}_train": np.load("drawings.npz")[f"{n}_train"] for n in "xy"})
        train, test = sources.open_sources(read("probe", "--arrays", "part.npz", *SAVED), 0)
        assert train.size == 20 and test is None

    def test_class_names(self, here):
        (here / "names.txt").write_text("dark\nlight\n")
        words = read(*ARRAYS, "--class-names", "names.txt")
        assert [source.class_names for source in sources.open_sources(words, 0)] == [("dark", "light")] * 2
