"""`keras-vit probe`: what it prints and writes, and which images it takes."""

import csv
import json

import keras
import numpy as np
import pytest
from command_line import SAVED, error_of, run

import keras_vit
from keras_vit.cli import parser, sources
from keras_vit.evaluation import FewShot

ARRAYS = ["probe", "--arrays", "drawings.npz", *SAVED]
RESULT = FewShot({1: (0.5, 0.25), 5: (0.75, 1.0)}, (0, 1), ("0", "1"), 8, "pooling", 1024.0)


def read(verb, *words):
    return parser.parse([verb, *map(str, words)])


@pytest.fixture
def calls(monkeypatch):
    """Arguments of `few_shot`, which computes nothing here."""
    found = []

    def few_shot(*args, **kwargs):
        found.append((args, kwargs))
        return RESULT

    monkeypatch.setattr(keras_vit.evaluation, "few_shot", few_shot)
    return found


def test_everything_is_handed_on(here, calls, capsys):
    words = ["--shots", "1,5", "--seeds", "2", "--layer", "block_00", "--l2", "2", "--batch-size", "4"]
    assert run(capsys, *ARRAYS, "--mean", "0.3", *words) == (0, f"{RESULT}\n", "")
    [((model, train, test), options)] = calls
    assert (model.config.name, model.preprocessing.mean) == ("small", (0.3, 0.3, 0.3))
    assert (train.size, test.size) == (20, 8)
    assert (options.pop("shots"), tuple(options.pop("seeds"))) == ((1, 5), (0, 1))
    assert options == {"layer": "block_00", "l2": 2.0, "batch_size": 4}


def test_defaults_are_those_of_few_shot(here, calls, capsys):
    run(capsys, *ARRAYS)
    [(_, options)] = calls
    assert (options["shots"], tuple(options["seeds"])) == ((1, 5, 10, 25), (0, 1, 2))
    assert not {"batch_size", "l2", "layer"} & set(options)


def test_json_and_table_have_every_number(here, calls, capsys):
    value = json.loads(run(capsys, *ARRAYS, "--table", "found.csv", "--json")[1])
    assert value["accuracy"] == {"1": [0.5, 0.25], "5": [0.75, 1.0]}
    assert (value["mean"], value["std"]) == ({"1": 0.375, "5": 0.875}, {"1": 0.125, "5": 0.125})
    assert (value["images"], value["classes"], value["seeds"]) == (8, ["0", "1"], [0, 1])
    assert (value["layer"], value["l2"]) == ("pooling", 1024.0)
    with open("found.csv", newline="") as file:
        rows = [(int(row["shots"]), int(row["seed"]), float(row["accuracy"])) for row in csv.DictReader(file)]
    assert rows == [(1, 0, 0.5), (1, 1, 0.25), (5, 0, 0.75), (5, 1, 1.0)]


def test_plot_is_an_image(here, calls, capsys):
    assert run(capsys, *ARRAYS, "--plot", "curve.png")[0] == 0
    assert (here / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_embed_writes_the_features_of_every_image(here, capsys):
    words = [*SAVED, "--layer", "block_00", "--batch-size", "3", "-o", "features.npz"]
    assert run(capsys, "embed", "images", *words)[:2] == (0, "features.npz\n")
    model = keras.models.load_model("model.keras")
    found = keras_vit.evaluation.embed(model, "images", "block_00")
    assert len(found.files) == 4 and found.files[0] == "n02123394_Persian_cat/0.jpg"
    with np.load("features.npz") as saved:
        np.testing.assert_allclose(saved["features"], found.features, atol=1e-5)
        assert tuple(saved["files"]) == found.files
    assert "the ending of --output must be" in error_of(run(capsys, "embed", "images", *SAVED, "-o", "features.csv"))


class TestArrays:
    def test_one_part_is_learned_from_and_the_other_measured_on(self, here):
        for words in (ARRAYS, ["train", "--recipe", "quickstart", "--arrays", "drawings.npz"]):
            train, test = sources.open_sources(read(*words), 0)
            assert (train.size, test.size) == (20, 8)
            images = [element["image"] for element in test.dataset.as_numpy_iterator()]
            np.testing.assert_array_equal(images, np.load("drawings.npz")["x_test"])

    def test_hold_out_takes_from_those_to_learn_from(self, here):
        train, held_out = sources.open_sources(read(*ARRAYS, "--hold-out", "0.25"), 0)
        assert (train.size, held_out.size) == (15, 5)

    def test_evaluate_takes_the_test_part(self, here):
        assert sources.open_source(read("evaluate", "--arrays", "drawings.npz", *SAVED)).size == 8

    def test_without_a_test_part_nothing_is_measured_on(self, here):
        np.savez("part.npz", **{f"{n}_train": np.load("drawings.npz")[f"{n}_train"] for n in "xy"})
        train, test = sources.open_sources(read("probe", "--arrays", "part.npz", *SAVED), 0)
        assert train.size == 20 and test is None

    def test_class_names(self, here):
        (here / "names.txt").write_text("dark\nlight\n")
        words = read(*ARRAYS, "--class-names", "names.txt")
        assert [source.class_names for source in sources.open_sources(words, 0)] == [("dark", "light")] * 2
