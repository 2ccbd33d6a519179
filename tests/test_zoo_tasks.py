"""list_models of task models, and what create_model and load answer to their names."""

import pytest
from conftest import TESTS
from faults import for_each

import keras_vit
from keras_vit import zoo


@for_each(
    ("pattern", "task", "names"),
    [
        ("thing-v2-small", "depth", ["depth-anything/Depth-Anything-V2-Small-hf"]),
        ("*/depth*v2-SMALL*", "any", ["depth-anything/Depth-Anything-V2-Small-hf"]),
        ("sam", "masks", [f"facebook/sam-vit-{size}" for size in ("base", "large", "huge")]),  # the class
        ("hustvl/*", "detection", [f"hustvl/yolos-{size}" for size in ("tiny", "small", "small-dwr", "base")]),
        ("hustvl/*", "keypoints", []),
        ("yolos", None, []),
    ],
)
def test_list_models_of_a_task(pattern, task, names):
    assert keras_vit.list_models(pattern, task) == names


def test_every_task_model_has_a_task():
    tasks = ("depth", "segmentation", "keypoints", "detection", "masks")
    names = [name for task in tasks for name in keras_vit.list_models(task=task)]
    assert sorted(names) == sorted(keras_vit.list_models(task="any")) and len(names) > 50
    with pytest.raises(ValueError, match=r"task must be one of 'any', 'depth', .*; got task='pose'"):
        keras_vit.list_models(task="pose")


@for_each("name", ["depth-anything/Depth-Anything-V2-Small-hf", "hf://depth-anything/Depth-Anything-V2-Small-hf"])
def test_the_name_of_a_task_model_is_answered_with_the_call_that_opens_it(name):
    call = "keras_vit.load('hf://depth-anything/Depth-Anything-V2-Small-hf')"
    with pytest.raises(ValueError) as caught:
        keras_vit.create_model(name)
    assert str(caught.value) == f"variant={name!r} is the name of a task model (DPT): {call} opens it"


@for_each("name", ["CIDAS/clipseg-rd64", "hf://CIDAS/clipseg-rd64", "facebook/sam-vit-base"])
def test_load_takes_the_names(name, monkeypatch):
    fetched = []
    monkeypatch.setattr(zoo, "fetch", lambda found: fetched.append(found.address) or TESTS / "golden_tasks" / "owlv2")
    model = keras_vit.load(name, variant="clip", image_size=32)
    assert fetched == [f"hf://{name.removeprefix('hf://')}"] and type(model).__name__ == "OWL"


def test_a_folder_of_the_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "CIDAS").mkdir()
    (tmp_path / "CIDAS" / "clipseg-rd64").symlink_to(TESTS / "golden_tasks" / "owlv2")
    monkeypatch.chdir(tmp_path)
    assert type(keras_vit.load("CIDAS/clipseg-rd64")).__name__ == "OWL"


def test_a_mistyped_name():
    with pytest.raises(FileNotFoundError, match=r"is no file and no known name \(did you mean 'CIDAS/clipseg-rd64'"):
        keras_vit.load("CIDAS/clipseg-rd46")
