"""save_weights of task models: every array and every key of the file of transformers comes back."""

import json
import shutil

import keras
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from conftest import TESTS
from faults import for_each
from slow_rows import slow_after

import keras_vit

FOLDER = TESTS / "golden_tasks"
# one file of each class, then the others
CASES = [
    "clipseg_text",
    "dpt_depth",
    "dpt_segmentation",
    "eomt_dinov2",
    "owlv2",
    "sam_prompts",
    "vitpose_plus",
    "yolos_mid",
]
OTHERS = sorted({path.parent.name for path in FOLDER.glob("*/config.json")} - {*CASES})
PROCESSOR = {"image_processor_type": "EomtImageProcessor", "size": {"shortest_edge": 32, "longest_edge": 32}}
PROCESSOR |= {"resample": 2, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7], "do_pad": True}


def contents(folder):
    """Return {name: (dtype, shape, bytes)} of the arrays of a folder, and {name: values} of its JSON files."""
    arrays = {}
    for name, array in safetensors.deserialize((folder / "model.safetensors").read_bytes()):
        arrays[name] = (array["dtype"], array["shape"], bytes(array["data"]))
    return arrays, {path.name: json.loads(path.read_text()) for path in folder.glob("*config.json")}


def copied(case, folder, change=None, **texts):
    """Copy the weights and the config of a case, with changed arrays and further JSON files."""
    folder.mkdir()
    shutil.copy(FOLDER / case / "config.json", folder)
    arrays = safetensors.numpy.load_file(FOLDER / case / "model.safetensors")
    safetensors.numpy.save_file(change(arrays) if change else arrays, folder / "model.safetensors")
    for name, values in texts.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def written(model, folder):
    keras_vit.save_weights(model, folder, layout="huggingface")
    return contents(folder)


def check_same(model, again, images=None):
    assert again.get_config() == model.get_config()
    for mine, theirs in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)
    if images is not None:
        for mine, theirs in zip(keras.tree.flatten(model(images)), keras.tree.flatten(again(images)), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", slow_after(len(CASES), [*CASES, *OTHERS]))
def test_files_come_back_bit_for_bit(name, tmp_path):
    case = FOLDER / name
    model = keras_vit.load(case)
    expected, texts = contents(case)
    found, found_texts = written(model, tmp_path / "copy")
    assert found == expected and found_texts == texts
    takes_images = not isinstance(model.input, (list, dict)) and not isinstance(model, keras_vit.SAM)
    check_same(model, keras_vit.load(tmp_path / "copy"), np.load(case / "io.npz")["images"] if takes_images else None)


def _classic(arrays):
    """Return the arrays of a ViTPose with the classic decoder, with the counters of PyTorch's norms."""
    random = np.random.default_rng(0)
    sizes = {"deconv1.weight": (24, 256, 4, 4), "deconv2.weight": (256, 256, 4, 4), "conv.weight": (5, 256, 1, 1)}
    of_norm = ("weight", "bias", "running_mean", "running_var")
    sizes |= {f"batchnorm{number}.{name}": (256,) for number in (1, 2) for name in of_norm}
    arrays |= {f"head.{name}": random.random(size, "float32") for name, size in sizes.items()}
    return arrays | {f"head.batchnorm{n}.num_batches_tracked": np.array(2**40 + n, "int64") for n in (1, 2)}


def _with_buffers(arrays):
    vision, ids = "owlv2.vision_model.embeddings.position_ids", np.arange(17)[None]
    return {**arrays, vision: ids, "box_bias": np.ones((16, 4), "float32")}


# case, function that changes its arrays, further JSON files
CHANGED = [
    ("eomt_dinov2", lambda arrays: {name: array.astype("float16") for name, array in arrays.items()}, {}),
    ("dpt_depth", lambda arrays: {name: array.astype("bfloat16") for name, array in arrays.items()}, {}),
    ("owlv2", _with_buffers, {}),
    ("eomt_dinov2", None, {"preprocessor_config": PROCESSOR}),
    ("eomt_dinov2", None, {"processor_config": {"image_processor": PROCESSOR, "processor_class": "Any"}}),
]


@for_each("case, change, texts", CHANGED)
def test_dtypes_buffers_and_image_processors(tmp_path, case, change, texts):
    folder = copied(case, tmp_path / "file", change, **texts)
    assert written(keras_vit.load(folder), tmp_path / "copy") == contents(folder)


def test_counters_of_batch_norms(tmp_path):
    folder = copied("vitpose_simple", tmp_path / "file", _classic)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "use_simple_decoder": False}))
    assert written(keras_vit.load(folder), tmp_path / "copy") == contents(folder)


def test_values_that_a_dtype_cannot_hold_are_float32(tmp_path):
    folder = copied("eomt_dinov2", tmp_path / "file", CHANGED[0][1])
    model = keras_vit.load(folder)
    values = {"class_head/bias": np.full(6, 1 + 2**-20, "float32"), "encoder_norm/beta": np.full(20, 1e6, "float32")}
    for variable in model.weights:
        if variable.path in values:
            variable.assign(values[variable.path])
    found, expected = written(model, tmp_path / "copy")[0], contents(folder)[0]
    changed = {name: found[name] for name in found if found[name] != expected[name]}
    assert changed == {
        "class_predictor.bias": ("F32", [6], values["class_head/bias"].tobytes()),
        "layernorm.bias": ("F32", [20], values["encoder_norm/beta"].tobytes()),
    }


def test_new_classes_and_labels(tmp_path):
    model = keras_vit.load(FOLDER / "eomt_dinov2", classes=2)
    model.labels = ["cat", "dog"]
    arrays, texts = written(model, tmp_path / "copy")
    old_arrays, old = contents(FOLDER / "eomt_dinov2")
    changed = {name for name, array in arrays.items() if array != old_arrays[name]}
    assert changed == {"class_predictor.bias", "class_predictor.weight", "criterion.empty_weight"}
    last = old_arrays["criterion.empty_weight"][2][-4:]  # the weight of no object
    assert arrays["criterion.empty_weight"] == ("F32", [3], np.ones(2, "float32").tobytes() + last)
    names = {"id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1}}
    assert texts == {"config.json": {**old["config.json"], **names}}
    again = keras_vit.load(tmp_path / "copy")
    assert again.labels == ("cat", "dog")
    check_same(model, again)


def test_another_image_size(tmp_path):
    model = keras_vit.load(FOLDER / "sam_prompts", image_size=64)
    config = written(model, tmp_path / "copy")[1]["config.json"]
    prompts = config["prompt_encoder_config"]
    assert config["vision_config"]["image_size"] == prompts["image_size"] == 64
    assert prompts["image_embedding_size"] == 8
    check_same(model, keras_vit.load(tmp_path / "copy"))


def test_both_copies_of_the_positions_of_sam_are_those_of_the_model(tmp_path):
    first, second = (
        f"{part}.positional_embedding" for part in ("shared_image_embedding", "prompt_encoder.shared_embedding")
    )
    folder = copied("sam_prompts", tmp_path / "file", lambda arrays: {**arrays, second: arrays[first]})
    model = keras_vit.load(folder)
    assert written(model, tmp_path / "copy") == contents(folder)
    variable = next(variable for variable in model.weights if variable.path == "fourier_positions/projection")
    variable.assign(variable + 1)
    changed = written(model, tmp_path / "changed")[0]
    assert changed[first] == changed[second] != contents(folder)[0][first]


def test_a_fixed_size_of_a_model_for_any_size(tmp_path):
    model, images = keras_vit.load(FOLDER / "yolos_mid", image_size=(40, 56)), np.ones((1, 40, 56, 3), "float32")
    of_any = keras_vit.load(FOLDER / "yolos_mid")
    assert written(model, tmp_path / "copy") == contents(FOLDER / "yolos_mid")
    for mine, theirs in zip(keras.tree.flatten(model(images)), keras.tree.flatten(of_any(images)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def _other_preprocessing(model):
    model.preprocessing = model.preprocessing.replace(mean=(0.1, 0.2, 0.3))
    return model


def _labelled(model, labels):
    model.labels = labels
    return model


@for_each(
    "make, words",
    [
        (lambda load: _other_preprocessing(load("eomt_dinov2")), "cannot state preprocessing=.*use model.save"),
        (lambda load: load("eomt_dinov2", gelu="tanh"), "cannot state gelu='tanh'; .* 'erf' .use model.save"),
        (lambda load: load("dpt_depth", image_size=(64, 32)), "needs a square position table; the model has 8 x 4"),
        (lambda load: _labelled(load("yolos_mid"), ["cat"]), "labels must be 4 names for yolos; got 1 names"),
        (lambda load: _labelled(load("dpt_depth"), ["cat"]), "labels must be None for dpt; got 1 names"),
        (
            lambda load: keras_vit.EoMT(load("eomt_dinov2").encoder, classes=5, num_queries=6, num_blocks=2),
            r"load such a file of the same sizes, and call its set_weights.model.get_weights.*use model.save",
        ),
    ],
)
def test_what_cannot_be_written(tmp_path, make, words):
    model = make(lambda case, **changes: keras_vit.load(FOLDER / case, **changes))
    with pytest.raises(ValueError, match=words):
        keras_vit.save_weights(model, tmp_path / "copy", layout="huggingface")
    assert not (tmp_path / "copy").exists()


def test_a_keras_file_does_not_keep_the_origin(tmp_path):
    model = keras_vit.load(FOLDER / "yolos_mid")
    model.save(tmp_path / "model.keras")
    saved = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="config.json and buffers of the file, which other models do not have"):
        keras_vit.save_weights(saved, tmp_path / "copy", layout="huggingface")
    saved.weights[0].assign(saved.weights[0] + 1)
    model.set_weights(saved.get_weights())  # as the message says
    keras_vit.save_weights(model, tmp_path / "copy", layout="huggingface")
    check_same(saved, keras_vit.load(tmp_path / "copy"))


def test_the_layout_and_the_path_of_a_task_model(tmp_path):
    model = keras_vit.load(FOLDER / "yolos_mid")
    with pytest.raises(ValueError, match="layout must be one of 'huggingface'; got layout='timm'"):
        keras_vit.save_weights(model, tmp_path / "copy", layout="timm")
    with pytest.raises(ValueError, match="path must be a folder for a task model, which needs its config.json"):
        keras_vit.save_weights(model, tmp_path / "a.safetensors", layout="huggingface")
