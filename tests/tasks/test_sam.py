"""SAM: wrong prompts, files with and without its decoder, its masks; tests/test_golden.py has its numbers."""

import json
import pathlib
import re
import shutil

import golden_task_models
import numpy as np
import pytest
import safetensors.numpy
from golden_arrays import stored_in
from golden_task_models import PROMPTS, sam_prompts

import keras_vit
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.resolve import resolve
from keras_vit.checkpoints.task_files import build_task, whole_of
from keras_vit.layers import prompts
from keras_vit.models.sam import SAM
from keras_vit.models.vit import VisionTransformer

FOLDER = pathlib.Path(__file__).parents[1] / "golden_tasks" / "sam_prompts"
CASE = json.loads((FOLDER / "case.json").read_text())
ARRAYS = stored_in(FOLDER / "io.npz")
SECOND = "prompt_encoder.shared_embedding.positional_embedding"
FIRST = "shared_image_embedding.positional_embedding"

POINTS = {"points": ARRAYS["points"], "labels": ARRAYS["labels"]}
SETS = {name: sam_prompts(ARRAYS, name) for name in PROMPTS}
NONE = dict.fromkeys(("points", "labels", "boxes", "masks"))


def build(folder):
    evidence = read_evidence(open_checkpoint(folder))
    return build_task(resolve(evidence, None, {}), whole_of(evidence))


@pytest.fixture(scope="module")
def model():
    return build(FOLDER)


@pytest.fixture(scope="module")
def embeddings(model):
    return model.encode(ARRAYS["images"])


def check(key, value):
    golden_task_models.check(CASE, key, value, ARRAYS[key])


@pytest.mark.parametrize("name", ["points", "both"])
@pytest.mark.parametrize("method", ["call", "predict"])
def test_a_call_encodes_and_decodes(model, name, method):
    inputs = {"images": ARRAYS["images"], **NONE, **SETS[name]}
    del inputs["multimask"]
    found = model(inputs) if method == "call" else model.predict(inputs, verbose=0)
    check(f"{name}_masks", found["masks"])
    check(f"{name}_iou", found["iou"])


def test_several_prompts_are_those_of_one_each(model, embeddings):
    points = np.concatenate([ARRAYS["points"], ARRAYS["points"][::-1]], axis=1)
    labels = np.concatenate([ARRAYS["labels"], ARRAYS["labels"][::-1]], axis=1)
    both = model.decode(embeddings, points, labels, masks=ARRAYS["low_res_masks"])
    assert both["masks"].shape == (2, 2, 3, 20, 20) and both["iou"].shape == (2, 2, 3)
    for number in range(2):
        part = np.s_[:, number : number + 1]
        one = model.decode(embeddings, points[part], labels[part], masks=ARRAYS["low_res_masks"])
        np.testing.assert_allclose(both["masks"][part], one["masks"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(both["iou"][part], one["iou"], atol=1e-5, rtol=0)
    own = np.stack([ARRAYS["low_res_masks"]] * 2, axis=1)  # a mask for each prompt
    each = model.decode(embeddings, points, labels, masks=own)
    np.testing.assert_allclose(each["masks"], both["masks"], atol=1e-5, rtol=0)


def test_a_mask_alone_is_a_prompt(model, embeddings):
    assert model.decode(embeddings, masks=ARRAYS["low_res_masks"])["masks"].shape == (2, 1, 3, 20, 20)


def test_every_array_is_used_once(model):
    entries = open_checkpoint(FOLDER).entries
    assert sum(np.prod(variable.shape) for variable in model.variables) == CASE["num_params"]
    assert sum(np.prod(entry.shape) for entry in entries.values()) == CASE["num_params"]
    assert not model.get_layer("fourier_positions").trainable_weights


def test_a_copy_by_config_has_the_same_layers(model):
    copy = SAM.from_config(model.get_config())
    assert [v.path for v in copy.variables] == [v.path for v in model.variables]
    assert copy.preprocessing == model.preprocessing


def test_load_builds_the_whole_model(embeddings):
    model = keras_vit.load(FOLDER)
    assert isinstance(model, SAM)
    check("points_masks", model.decode(embeddings, **POINTS)["masks"])


def write(folder, change):
    """Write a copy of the file with other arrays."""
    folder.mkdir()
    shutil.copy(FOLDER / "config.json", folder)
    arrays = safetensors.numpy.load_file(FOLDER / "model.safetensors")
    safetensors.numpy.save_file(change(arrays), folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_file_without_a_decoder_is_an_encoder(embeddings, tmp_path):
    folder = write(tmp_path / "a", lambda x: {name: x[name] for name in x if name.startswith("vision_encoder")})
    evidence = read_evidence(open_checkpoint(folder))
    assert whole_of(evidence) is evidence
    encoder = keras_vit.load(folder)
    assert type(encoder) is VisionTransformer
    np.testing.assert_array_equal(encoder(ARRAYS["images"]), embeddings)


def test_weights_of_an_encoder_may_be_those_of_a_whole_model(model, embeddings, tmp_path):
    encoder = VisionTransformer(model.encoder.config)
    report = keras_vit.load_weights(encoder, FOLDER)
    assert set(report.unused.values()) == {"the prompt encoder", "the mask decoder"}
    np.testing.assert_array_equal(encoder(ARRAYS["images"]), embeddings)


@pytest.mark.parametrize("kept", [(SECOND,), (FIRST, SECOND)])
def test_the_positions_may_have_their_other_name(model, kept, tmp_path):
    def change(arrays):
        positions = arrays.pop(FIRST)
        return {**arrays, **{name: positions.copy() for name in kept}}

    found = build(write(tmp_path / "a", change)).get_layer("fourier_positions").projection
    np.testing.assert_array_equal(found, model.get_layer("fourier_positions").projection)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("prompt_encoder_config", "hidden_act", "relu"),
        ("prompt_encoder_config", "num_point_embeddings", 5),
        ("mask_decoder_config", "iou_head_depth", 4),
        ("mask_decoder_config", "num_attention_heads", 0),
    ],
)
def test_a_config_that_the_model_cannot_have_is_refused(part, key, value, tmp_path):
    folder = write(tmp_path / "a", lambda arrays: arrays)
    values = json.loads((folder / "config.json").read_text())
    values[part][key] = value
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=rf"{key} in {part} must be .*; got .*{value}"):
        build(folder)


ONE = np.zeros((2, 1, 1))
WRONG = [
    ({}, "points, boxes or masks must be given; got None for each"),
    ({"labels": ONE}, "points and labels must be given together, one label for each point; got points=None"),
    (
        {"points": POINTS["points"]},
        "points and labels must be given together, one label for each point; got labels=None",
    ),
    ({"points": [[1, 2]], "labels": ONE}, "points must be a tensor or array of shape (2, prompts, points, 2); got"),
    ({"points": np.ones((2, 1, 2)), "labels": ONE}, "(2, prompts, points, 2); got points of shape (2, 1, 2)"),
    (
        {"points": np.ones((2, 1, 2, 2)), "labels": ONE},
        "labels must be a tensor or array of shape (2, 1, 2); got labels",
    ),
    ({"points": np.ones((2, 1, 1, 2)), "labels": ONE + 4}, "labels must be among (-10, -1, 0, 1); got [[[4"),
    ({"points": np.full((2, 1, 1, 2), 41.0), "labels": ONE}, "x from 0 to 40 and y from 0 to 40; got [[[[41.0, 41.0"),
    ({"points": np.full((2, 1, 1, 2), np.nan), "labels": ONE}, "x from 0 to 40 and y from 0 to 40; got [[[[nan, nan"),
    (
        {"boxes": np.ones((2, 1, 2))},
        "boxes must be a tensor or array of shape (2, prompts, 4); got boxes of shape (2, 1, 2)",
    ),
    (
        {"boxes": np.ones((3, 1, 4))},
        "boxes must be a tensor or array of shape (2, prompts, 4); got boxes of shape (3, 1, 4)",
    ),
    ({**POINTS, "boxes": np.ones((2, 3, 4))}, "shape (2, 1, 4); got boxes of shape (2, 3, 4)"),
    ({"boxes": np.full((2, 1, 4), [1, 1, 50, 9])}, "boxes must be in pixels of the image, x from 0 to 40"),
    ({"boxes": np.full((2, 1, 4), [9, 1, 2, 9])}, "boxes must be (x0, y0, x1, y1) with x0 < x1 and y0 < y1; got [[[9"),
    ({**POINTS, "masks": np.ones((2, 40, 40))}, "masks must be a tensor or array of shape (2, 20, 20); got masks of"),
    (
        {"masks": np.ones((2, 3, 20, 20))},
        "masks without points and boxes must be of one prompt; got shape (2, 3, 20, 20)",
    ),
    ({**POINTS, "multimask": 1}, "multimask must be True or False; got multimask=1"),
    (
        {**POINTS, "embeddings": np.ones((2, 5, 4, 16))},
        "shape (batch, 5, 5, 16); got embeddings of shape (2, 5, 4, 16)",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_prompt_is_refused(model, embeddings, given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        model.decode(**{"embeddings": embeddings, **given})


def test_wrong_images_are_refused(model):
    message = "images must be a tensor or array of shape (batch, 40, 40, 3); got images of shape (2, 32, 40, 3)"
    with pytest.raises(ValueError, match=re.escape(message)):
        model.encode(ARRAYS["images"][:, :32])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_masks": 0}, "num_masks must be an integer of at least 1; got num_masks=0"),
        ({"mask_channels": 6}, "mask_channels must be divisible by 4; got mask_channels=(6,)"),
        ({"num_heads": 3}, "num_heads must divide the width of the input; got 3 and 16"),
        ({"reduction": 3}, "reduction must divide the width of the input; got 3 and 16"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
    ],
)
def test_a_wrong_argument_is_refused(model, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SAM(model.encoder, **arguments)


def test_the_encoder_must_be_one_of_sam(model):
    with pytest.raises(TypeError, match=r"encoder must be a keras_vit\.VisionTransformer; got int"):
        SAM(3)
    with pytest.raises(ValueError, match=r"encoder must have head\.neck, .*got head\.neck=None"):
        SAM(VisionTransformer(model.encoder.config.replace(**{"head.neck": None})))
    with pytest.raises(ValueError, match="hidden_dim|num_heads must divide"):
        prompts.FourierPositions(5)
