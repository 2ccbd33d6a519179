"""The numbers of transformers for task models, and their copies as `.keras` files."""

import json
import pathlib

import golden_task_models
import keras
import numpy as np
import pytest

import keras_vit

FOLDER = pathlib.Path(__file__).parents[1] / "golden_tasks"
CASES = [path.parent for path in sorted(FOLDER.glob("*/case.json"))]
CASES_WITH_FILES = [folder for folder in CASES if (folder / "config.json").exists()]
MODELS = [
    folder
    for folder in CASES
    if json.loads((folder / "case.json").read_text()).get("class") in golden_task_models.LAYERS
]


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_outputs_are_those_of_transformers(folder):
    golden_task_models.compare_task(folder, json.loads((folder / "case.json").read_text()))


@pytest.mark.parametrize("folder", CASES_WITH_FILES, ids=lambda folder: folder.name)
def test_files_are_described_without_their_weights(folder):
    found = keras_vit.describe(folder)
    assert found.task == json.loads((folder / "config.json").read_text())["model_type"]
    assert found.config.hidden_dim and all(found.unused.values())


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_saved_model_is_the_same(folder, tmp_path):
    model = keras_vit.load(folder)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    images = np.load(folder / "io.npz")["images"]
    for found, expected in zip(keras.tree.flatten(again(images)), keras.tree.flatten(model(images)), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert again.get_config() == model.get_config()


def test_a_task_model_is_no_classifier(tmp_path):
    folder = FOLDER / "depth_anything_relative"
    with pytest.raises(ValueError, match=r"holds a task model \(depth_anything\): keras_vit.load\('.*'\) opens it"):
        keras_vit.create_model("DINOv2-S_14", weights=folder)
