"""Descriptions of files of task models, and their copies as `.keras` files; tests/test_golden.py has their numbers."""

import json
import pathlib

import pytest

import keras_vit

FOLDER = pathlib.Path(__file__).parents[1] / "golden_tasks"
CASES_WITH_FILES = [path.parent for path in sorted(FOLDER.glob("*/config.json"))]
# the others are in the tests of their models
MODELS = [folder for folder in CASES_WITH_FILES if not folder.name.startswith(("clipseg", "owl", "sam"))]


@pytest.mark.parametrize("folder", CASES_WITH_FILES, ids=lambda folder: folder.name)
def test_files_are_described_without_their_weights(folder):
    found = keras_vit.describe(folder)
    assert found.task == json.loads((folder / "config.json").read_text())["model_type"]
    assert found.config.hidden_dim and all(found.unused.values())


def test_a_task_model_is_no_classifier(tmp_path):
    folder = FOLDER / "depth_anything_relative"
    with pytest.raises(ValueError, match=r"holds a task model \(depth_anything\): keras_vit.load\('.*'\) opens it"):
        keras_vit.create_model("DINOv2-S_14", weights=folder)
