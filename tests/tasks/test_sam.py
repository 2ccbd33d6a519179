"""SAM: the numbers of transformers, prompts that are wrong, files with and without its decoder, and its masks."""

import json
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.resolve import resolve
from keras_vit.checkpoints.task_files import build_task, whole_of
from keras_vit.layers import prompts
from keras_vit.models.sam import SAM
from keras_vit.models.vit import VisionTransformer
from keras_vit.tasks import masks

FOLDER = pathlib.Path(__file__).parents[1] / "golden_tasks" / "sam_prompts"
CASE = json.loads((FOLDER / "case.json").read_text())
ARRAYS = dict(np.load(FOLDER / "io.npz"))
POST = FOLDER.parent / "sam_post"
POST_CASE = json.loads((POST / "case.json").read_text())
POST_ARRAYS = dict(np.load(POST / "io.npz"))
SECOND = "prompt_encoder.shared_embedding.positional_embedding"
FIRST = "shared_image_embedding.positional_embedding"

POINTS = {"points": ARRAYS["points"], "labels": ARRAYS["labels"]}
# name of a set of prompts in the case -> prompts, multimask
SETS = {
    "points": (POINTS, True),
    "boxes": ({"boxes": ARRAYS["boxes"]}, False),
    "both": ({**POINTS, "boxes": ARRAYS["boxes"]}, True),
    "mask": ({**POINTS, "masks": ARRAYS["low_res_masks"]}, False),
}
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


def check(key, value, expected=None):
    expected = ARRAYS[key] if expected is None else expected
    value = keras.ops.convert_to_numpy(value).reshape(expected.shape)
    np.testing.assert_allclose(value, expected, atol=CASE["tolerance"]["per_key_atol"][key], rtol=0, err_msg=key)


def test_embeddings_are_those_of_transformers(model, embeddings):
    assert embeddings.shape == (2, 5, 5, 16)
    check("image_embeddings", embeddings)
    positions = model.get_layer("fourier_positions")(model.get_layer("grid_places")(embeddings))
    check("image_positional_embeddings", positions)
    patches = keras.Model(model.encoder.input, model.get_layer("patch_encoder").output)
    check("vision_patch_embed", patches(ARRAYS["images"]))


@pytest.mark.parametrize("name", SETS)
def test_masks_are_those_of_transformers(model, embeddings, name):
    given, multimask = SETS[name]
    found = model.decode(embeddings, **given, multimask=multimask)
    check(f"{name}_masks", found["masks"])
    check(f"{name}_iou", found["iou"])
    tokens, maps = parts_of(model, embeddings, **given)
    check(f"{name}_sparse", tokens)
    check(f"{name}_dense", maps)


def parts_of(model, embeddings, points=None, labels=None, boxes=None, masks=None):
    """Return the tokens of points and boxes, and the map of a mask."""
    places, kinds = model.get_layer("prompt_places")(embeddings, points, labels, boxes)
    tokens = model.get_layer("point_embedding")(model.get_layer("fourier_positions")(places), kinds)
    masks = None if masks is None else keras.ops.convert_to_tensor(masks[:, None])
    return tokens, model.get_layer("mask_embedding")(embeddings, masks)


def test_intermediates_of_the_decoder_are_those_of_transformers(model, embeddings):
    tokens, maps = parts_of(model, embeddings, **POINTS)
    positions = model.get_layer("fourier_positions")(model.get_layer("grid_places")(embeddings))
    tokens, image = model.get_layer("mask_decoder").features(embeddings, positions, tokens, maps)
    check("iou_token_path", tokens[:, 0])
    check("hyper_0_in", tokens[:, 1])
    activated = keras.ops.gelu(ARRAYS["upscaled"], approximate=False)  # stored before the last GELU
    check("upscaled", image, keras.ops.convert_to_numpy(activated))


@pytest.mark.parametrize("name", ["points", "both"])
@pytest.mark.parametrize("method", ["call", "predict"])
def test_a_call_encodes_and_decodes(model, name, method):
    inputs = {"images": ARRAYS["images"], **NONE, **SETS[name][0]}
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


def test_a_saved_model_is_the_same(model, embeddings, tmp_path):
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, SAM) and again.get_config() == model.get_config()
    for given, multimask in SETS.values():
        found = again.decode(again.encode(ARRAYS["images"]), **given, multimask=multimask)
        expected = model.decode(embeddings, **given, multimask=multimask)
        for key in ("masks", "iou"):
            np.testing.assert_array_equal(found[key], expected[key])


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


# --- masks in pixels of the image


def check_post(key, value):
    limit = POST_CASE["tolerance"]["per_key_atol"].get(key, 0)
    np.testing.assert_allclose(value, POST_ARRAYS[key], atol=limit, rtol=0, err_msg=key)


@pytest.mark.parametrize("number", [0, 1])
def test_masks_in_pixels_are_those_of_transformers(number):
    size, longest = POST_CASE["original_sizes"][number], POST_CASE["longest_edge"]
    image, logits = POST_ARRAYS[f"image_{number}"], POST_ARRAYS[f"low_res_masks_{number}"]
    assert masks.prompt_input_size(size, longest) == tuple(POST_ARRAYS["reshaped_sizes"][number])
    limit = POST_CASE["tolerance"]["per_key_atol"]["pixel_values"]
    pixels = masks.prompt_input(image, longest)
    np.testing.assert_allclose(pixels, POST_ARRAYS["pixel_values"][number], atol=limit, rtol=0)
    for key in ("points", "boxes"):
        check_post(f"{key}_resized_{number}", masks.to_prompt_pixels(POST_ARRAYS[f"{key}_{number}"], size, longest))
    found = masks.masks_to_pixels(logits, size, longest)
    check_post(f"masks_{number}", found)
    np.testing.assert_array_equal(found > 0, POST_ARRAYS[f"masks_binary_{number}"])
    check_post(f"stability_{number}", masks.mask_stability(found[0]))
    check_post(f"boxes_of_masks_{number}", masks.mask_boxes(found[0] > 0))


def test_an_empty_mask_has_no_stability_and_no_box():
    assert masks.mask_stability(np.full((3, 3), -2.0)) == 0
    np.testing.assert_array_equal(masks.mask_boxes(np.zeros((2, 3, 3), bool)), np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda: masks.prompt_input_size((0, 3)),
            "size must be one positive integer or a pair (height, width) of them",
        ),
        (lambda: masks.prompt_input_size(3, 0), "longest must be an integer of at least 1; got longest=0"),
        (
            lambda: masks.prompt_input(np.zeros((3, 3, 4))),
            "image must have shape (height, width, 1 or 3); got (3, 3, 4)",
        ),
        (
            lambda: masks.to_prompt_pixels(np.ones((2, 3)), 9),
            "shape (..., 2) or (..., 4); got coordinates of shape (2, 3)",
        ),
        (
            lambda: masks.masks_to_pixels(np.ones(3), 9),
            "logits must be of shape (..., rows, columns); got logits of shape (3,)",
        ),
        (lambda: masks.mask_stability(np.ones((3, 3)), -1), "offset must be a finite number above 0; got offset=-1"),
        (lambda: masks.mask_boxes(np.ones((3, 3))), "masks must be bool of shape (..., height, width); got float64"),
    ],
)
def test_wrong_arrays_are_refused(function, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        function()
