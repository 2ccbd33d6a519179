"""`--model` of every command: what `keras_vit.load` takes, or a name with `--weights`."""

import json
import pathlib

import numpy as np
import pytest
from command_line import run
from drawn import draw
from faults import for_each

import keras_vit
from keras_vit.cli import models, parser
from keras_vit.training import TrainResult

VERBS = {
    "predict": ["cat.jpg"],
    "evaluate": ["--folder", "images"],
    "probe": ["--folder", "images"],
    "embed": ["images", "-o", "features.npz"],
    "explain": ["cat.jpg", "-o", "cat.png"],
    "demo": [],
    "export": ["--output", "out"],
    "convert": ["--layout", "timm", "--output", "w.safetensors"],
}
FOLDER = str(pathlib.Path(__file__).parents[1] / "golden" / "dinov2_hf_cls")


@pytest.fixture(scope="module")
def saved(workplace):
    """A small model with a preprocessing of its own."""
    model = workplace.small_model()
    model.preprocessing = model.preprocessing.replace(mean=(0.25,) * 3)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    return model


@pytest.fixture
def here(saved, tmp_path, monkeypatch):
    """The current folder, with the model as two files, an image and arrays of two classes."""
    monkeypatch.chdir(tmp_path)
    saved.save("model.keras")
    keras_vit.save_weights(saved, "weights.safetensors", layout="timm")
    draw(0).save("cat.jpg")
    np.savez("drawings.npz", x_train=np.zeros((4, 16, 16, 3), "uint8"), y_train=np.arange(4) % 2)
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """The arguments of `load` and `create_model`, which open nothing here."""
    found = []
    for name in ("load", "create_model"):
        monkeypatch.setattr(keras_vit, name, lambda model, name=name, **given: found.append((name, model, given)))
    return found


def build(verb, *words, **options):
    models.build_model(parser.parse([verb, *VERBS.get(verb, ()), *words]), **options)


@for_each("verb", VERBS)
def test_what_load_takes_is_loaded(here, calls, verb):
    for name in ("weights.safetensors", FOLDER, "hf://org/repo", "facebook/dinov2-small", "vit_tiny_patch16_224"):
        build(verb, "--model", name, "--image-size", "64", "--classes", "2")
        assert calls.pop() == ("load", name, {"image_size": 64, "classes": 2})


def test_a_name_is_created(calls, tmp_path, monkeypatch):
    """With its weights, or without any for `info`; a folder of that name is another thing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-Ti_16").mkdir()
    for name in ("ViT-Ti_16", "ViT_Ti16", "vit_tiny_patch16_224"):
        build("predict", "--model", name, "--weights", "w.npz")
        build("info", name, needs_weights=False)
        assert calls == [("create_model", name, {"weights": "w.npz"}), ("create_model", name, {"weights": None})]
        calls.clear()


def test_files_answer_as_the_model_does(here, saved, capsys):
    expected = keras_vit.predict(saved, "cat.jpg")[0]
    for file in ("model.keras", "weights.safetensors"):
        code, out, err = run(capsys, "predict", "cat.jpg", "--model", file, "--json")
        assert code == 0, err
        found = {answer["label"]: answer["score"] for answer in json.loads(out)[0]["answers"]}
        assert found == pytest.approx(dict(expected), rel=1e-4)


def test_train_starts_from_a_file(here, saved, capsys, monkeypatch):
    """With a head for the classes of the images, the size of the recipe and the preprocessing of the file."""
    given = []

    def train(recipe, source, workdir, model, weights, **options):
        given.append((model, weights))
        return TrainResult(model, {}, 0.5)

    monkeypatch.setattr(keras_vit, "train", train)
    words = ["--recipe", "vit/finetune/pets", "--arrays", "drawings.npz", "--image-size", "32", "--workdir", "out"]
    for file in ("model.keras", "weights.safetensors"):
        code, _, err = run(capsys, "train", *words, "--model", file)
        assert code == 0, err
        model, weights = given.pop()
        assert (model.config.image_size, model.config.classes, weights) == ((32, 32), 2, None)
        assert model.preprocessing == saved.preprocessing.at(32) and model.labels is None
        blocks = (one.get_layer("block_00").get_weights() for one in (model, saved))
        for found, expected in zip(*blocks, strict=True):
            np.testing.assert_array_equal(found, expected)
