"""Task models of every class survive `save`: outputs, encoder, preprocessing and labels."""

import json
import zipfile

import keras
import numpy as np
import pytest
from conftest import TESTS
from slow_rows import slow_after

import keras_vit
from keras_vit.models import (
    DPT,
    OWL,
    SAM,
    YOLOS,
    CLIPSeg,
    DPTSegmentation,
    EoMT,
    LinearSegmentation,
    TaskModel,
    ViTPose,
)

FOLDER = TESTS / "golden_tasks"
# class -> a tiny file of it
CASES = {
    CLIPSeg: "clipseg_text",
    DPT: "depth_anything_relative",
    DPTSegmentation: "dpt_segmentation",
    EoMT: "eomt_dinov2",
    OWL: "owlv2",
    SAM: "sam_prompts",
    ViTPose: "vitpose_simple",
    YOLOS: "yolos_mid",
}


OTHERS = sorted({path.parent.name for path in FOLDER.glob("*/config.json")} - {*CASES.values()})


def outputs(model):
    """The outputs for two images, and those of the parts that the graph of the model does not have."""
    rng = np.random.default_rng(0)
    inputs = {
        name: None if x.dtype == "int32" or name in ("boxes", "masks") else rng.uniform(size=shape_of(x, model))
        for name, x in (model.input.items() if isinstance(model.input, dict) else [("images", model.input)])
    }
    if isinstance(model, SAM):
        inputs |= {"points": np.full((2, 1, 1, 2), 5.0), "labels": np.ones((2, 1, 1), "int32")}
    found = [model(inputs if len(inputs) > 1 else inputs["images"], training=False)]
    if isinstance(model, (CLIPSeg, OWL)):
        found.append(model.embed_text(np.array([[1, 3, 4]])))
    return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(found)]


def shape_of(tensor, model):
    return (2, *(side or 8 * model.config.patch_size[0] for side in tensor.shape[1:]))


def test_every_class_is_here():
    assert {*CASES} == {kind for kind in vars(keras_vit.models).values() if is_task(kind)} - {
        TaskModel,
        LinearSegmentation,
    }


def is_task(kind):
    return isinstance(kind, type) and issubclass(kind, TaskModel)


@pytest.mark.parametrize("case", slow_after(len(CASES), [*CASES.values(), *OTHERS]))
def test_survives_save(case, tmp_path):
    model = keras_vit.load(FOLDER / case)
    kind = type(model)
    assert case in (CASES[kind], *OTHERS)
    model.labels = ("one", "two")
    model.preprocessing = model.preprocessing.replace(interpolation="nearest", std=(0.25,) * 3)
    model.save(tmp_path / "task.keras")
    expected = outputs(model)
    for load in (keras_vit.load, *([keras.models.load_model] if kind is YOLOS else [])):
        again = load(tmp_path / "task.keras")
        assert type(again) is kind and again.name == model.name and again.arguments == model.arguments
        assert again.labels == model.labels and again.preprocessing == model.preprocessing
        assert again.encoder.config == model.encoder.config == again.config
        assert again.encoder.preprocessing == model.encoder.preprocessing
        for name in ("weights_source", "preprocessing_source"):
            assert isinstance(getattr(model, name), str)
            assert getattr(again, name) == getattr(model, name)
        of_encoder = {id(weight) for weight in again.encoder.weights}
        assert any(id(weight) in of_encoder for weight in again.weights)
        for ours, theirs in zip(again.weights, model.weights, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), ours.path)
    for ours, theirs in zip(outputs(again), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_damaged_file(tmp_path):
    model = keras_vit.load(FOLDER / CASES[ViTPose])
    model.save(tmp_path / "task.keras")
    with zipfile.ZipFile(tmp_path / "task.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    values = json.loads(members["config.json"])
    values["config"]["num_keypoints"] = "many"
    members["config.json"] = json.dumps(values).encode()
    with zipfile.ZipFile(tmp_path / "task.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"task.keras'.*num_keypoints must be an integer"):
        keras_vit.load(tmp_path / "task.keras")
    with pytest.raises(ValueError, match=r"states its whole model, so classes must be None; got 3"):
        keras_vit.load(tmp_path / "task.keras", classes=3)
