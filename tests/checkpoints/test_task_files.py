"""load of task models: arguments for their heads, and new heads."""

import itertools
import json

import keras
import numpy as np
import pytest
import safetensors.numpy
from conftest import TESTS
from faults import for_each

import keras_vit

FOLDER = TESTS / "golden_tasks"
# case, argument, layer that is new, arrays of the file that it replaces
HEADS = [
    ("eomt_dinov2", {"classes": 7}, "class_head", "class_predictor"),
    ("yolos_mid", {"classes": 7}, "class_head/dense_3", "class_labels_classifier.layers.2"),
    ("vitpose_simple", {"num_keypoints": 3}, "decoder/conv1", "head.conv"),
]


@for_each("case, argument, layer, theirs", HEADS)
def test_a_new_head(case, argument, layer, theirs, caplog):
    keras.utils.set_random_seed(0)
    old, model = keras_vit.load(FOLDER / case), keras_vit.load(FOLDER / case, **argument)
    names = {f"{layer}/kernel", f"{layer}/bias"}
    values = {variable.path: keras.ops.convert_to_numpy(variable) for variable in old.weights}
    for variable in model.weights:
        value = keras.ops.convert_to_numpy(variable)
        if variable.path in names:
            assert value.shape != values[variable.path].shape
            assert value.std() > 5e-4 if variable.path.endswith("kernel") else not value.any()
        else:
            np.testing.assert_array_equal(value, values[variable.path], err_msg=variable.path)
    assert names <= values.keys()
    assert f"new head: {layer}/kernel, {layer}/bias start at random, in place of {theirs}." in caplog.text
    unused = keras_vit.describe(FOLDER / case, **argument).unused
    assert {name for name in unused if name.startswith(theirs)} == {f"{theirs}.weight", f"{theirs}.bias"}


def test_labels_belong_to_the_head_of_the_file(tmp_path):
    model = keras_vit.load(FOLDER / "yolos_mid")
    model.labels = ["a", "b", "c", "d"]
    keras_vit.save_weights(model, tmp_path / "file", layout="huggingface")
    assert keras_vit.load(tmp_path / "file").labels == ("a", "b", "c", "d")
    assert keras_vit.load(tmp_path / "file", classes=4).labels == ("a", "b", "c", "d")
    assert keras_vit.load(tmp_path / "file", classes=3).labels is None
    assert keras_vit.load(tmp_path / "file", classes=3, labels=("x", "y", "z")).labels == ("x", "y", "z")


_FOR = "must be left out for a model of the kind"


@for_each(
    "case, arguments, words",
    [
        ("dpt_depth", {"classes": 7}, f"classes {_FOR} DPT, whose head has no classes; got 7"),
        ("depth_anything_relative", {"classes": 7}, f"classes {_FOR} DPT, whose head has no classes; got 7"),
        ("sam_prompts", {"classes": 7}, f"classes {_FOR} SAM, whose head has no classes; got 7"),
        ("clipseg_text", {"classes": 7}, f"classes {_FOR} CLIPSeg, whose head has no classes; got 7"),
        ("owlv2", {"classes": 7}, f"classes {_FOR} OWL, whose head has no classes; got 7"),
        ("vitpose_simple", {"classes": 7}, f"classes {_FOR} ViTPose, whose head has num_keypoints; got 7"),
        ("yolos_mid", {"num_keypoints": 7}, f"num_keypoints {_FOR} YOLOS, whose head has classes; got 7"),
        ("yolos_mid", {"include_top": True}, f"include_top {_FOR} YOLOS, whose head has classes; got True"),
        ("yolos_mid", {"pooling": "gap"}, f"pooling {_FOR} YOLOS, whose head has classes; got 'gap'"),
        ("yolos_mid", {"head": {"bias": False}}, f"head.bias {_FOR} YOLOS, whose head has classes; got False"),
        ("yolos_mid", {"classes": 0}, "classes must be an integer of at least 1; got classes=0"),
        ("yolos_mid", {"num_heads": 2}, "the file states num_heads=3; the model has 2"),
    ],
)
def test_arguments_that_a_task_model_does_not_have(case, arguments, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.load(FOLDER / case, **arguments)


def test_unknown_arguments_and_none():
    with pytest.raises(TypeError, match="load got an unexpected keyword argument 'num_querys'"):
        keras_vit.load(FOLDER / "eomt_dinov2", num_querys=3)
    assert keras_vit.load(FOLDER / "eomt_dinov2", classes=None).output["class_logits"].shape == (None, 6, 6)


@for_each("names", [("gate_proj", "up_proj", "down_proj"), ("weights_in", "weights_out")])
def test_gated_blocks_come_back(tmp_path, names):
    """EoMT on a giant DINOv2: transformers 5 writes the hidden layer as two arrays, transformers 4 as one."""
    arrays = safetensors.numpy.load_file(FOLDER / "eomt_dinov2" / "model.safetensors")
    random, rows = np.random.default_rng(0), 32 // (len(names) - 1)
    arrays = {name: array for name, array in arrays.items() if ".mlp." not in name}
    for block, name in itertools.product(range(4), names):
        shape = (20, 16) if name == names[-1] else (rows, 20)
        arrays[f"layers.{block}.mlp.{name}.weight"] = random.random(shape, "float32")
        arrays[f"layers.{block}.mlp.{name}.bias"] = random.random(shape[0], "float32")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    config = json.loads((FOLDER / "eomt_dinov2" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "use_swiglu_ffn": True}))
    model = keras_vit.load(tmp_path)
    kernel = {variable.path: variable for variable in model.weights}["block_01/mlp/dense1/kernel"]
    expected = np.concatenate([arrays[f"layers.1.mlp.{name}.weight"] for name in names[:-1]]).T
    np.testing.assert_array_equal(kernel, expected)
    keras_vit.save_weights(model, tmp_path / "copy", layout="huggingface")
    found = safetensors.numpy.load_file(tmp_path / "copy" / "model.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {k: v.tobytes() for k, v in arrays.items()}
