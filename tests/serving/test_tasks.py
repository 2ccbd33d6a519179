"""Task models as SavedModels: their answers for files are those of `keras_vit.predict`, and arrays give the outputs."""

import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import TESTS
from drawn import draw, encode
from faults import for_each

import keras_vit
from keras_vit import tasks
from keras_vit.serving import ExportError, export, self_check

FOLDER = TESTS / "golden_tasks"
# a tiny file -> what its preprocessing becomes, options of `predict`
ANSWERED = {
    "dpt_depth": ({"sizing": "nearest", "size": 64, "multiple": 32}, {}),
    "dpt_dinov2": ({"sizing": "center_padding", "multiple": 14}, {}),
    "dpt_segmentation": ({}, {}),
    "eomt_dinov2": ({"sizing": "longest"}, {"segments": "semantic"}),
    "yolos_mid": ({"sizing": "shortest", "size": 48, "longest": 64, "multiple": 16}, {"threshold": 0.0}),
}
# heads with other weights, so that the answer has several classes -> their standard deviation
SPREAD = {"eomt_dinov2": {"class_head": 3.0, "mask_head": 0.6}, "yolos_mid": {"class_head": 0.3}}
OTHERS = ("clipseg_text", "owlv2", "sam_prompts", "vitpose_simple")
INPUTS = {"clipseg_text": {"images", "condition"}, "owlv2": {"images", "queries"}, "vitpose_simple": {"images"}}
INPUTS["sam_prompts"] = {"images", "points", "labels"}


def load(case, **preprocessing):
    model = keras_vit.load(FOLDER / case)
    model.preprocessing = model.preprocessing.replace(**preprocessing)
    return model


def photograph(seed, size):
    """A file, and its pixels: uint8 (*size, 3)."""
    image = draw(seed).resize(size[::-1])
    return encode(image, "PNG"), np.asarray(image)


@pytest.fixture(scope="module")
def depth():
    model = load("depth_anything_relative", sizing="nearest", size=56, multiple=14, interpolation="bicubic")
    model.labels = ("near", "far")
    return model


def test_depth_of_photographs_of_other_sizes(depth, tmp_path):
    exported = export(depth, tmp_path / "depth", check=False)
    signatures = tf.saved_model.load(str(exported)).signatures
    assert {*signatures} == {"serving_default", "arrays"}
    served = signatures["serving_default"]
    files, photos = zip(*(photograph(seed, (70, 101)) for seed in (1, 2)), strict=True)
    (found,) = served(image_bytes=tf.constant(files)).values()
    expected = np.stack([answer.values for answer in keras_vit.predict(depth, list(photos))])
    # bicubic pixels differ from Pillow's by 1 of 255 in a few of 10,000
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.ptp(expected))
    with pytest.raises(tf.errors.InvalidArgumentError):
        served(image_bytes=tf.constant([photograph(1, (30, 40))[0], photograph(1, (40, 30))[0]]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        served(image_bytes=tf.constant([b"no image"]))
    inputs, _ = tasks.prepare(photograph(3, (50, 60))[1], depth.preprocessing)
    (found,) = signatures["arrays"](images=tf.constant(inputs)).values()
    np.testing.assert_allclose(found, np.asarray(depth(inputs)), atol=1e-5)


@pytest.mark.slow
def test_the_folder_of_an_export(depth, tmp_path):
    exported = export(depth, tmp_path / "depth", check=[photograph(0, (40, 56))[0]])
    card = json.loads((exported / "model_card.json").read_text())
    assert card["options"] == {"max_pixels": 64_000_000} and card["labels"] == ["near", "far"]
    assert {*card["check"]["largest_differences"]} == {"serving_default/values", "arrays/values"}
    assert card["weights"] == depth.weights_source
    assert keras_vit.Preprocessing.from_dict(card["preprocessing"]) == depth.preprocessing
    assert (exported / "assets" / "labels.txt").read_text() == "near\nfar\n"
    text = (exported / "README.txt").read_text()
    assert text.count("curl -d @-") == 1 and "An unreadable image fails its request." in text


@pytest.mark.slow
def test_a_difference_removes_the_export(depth, tmp_path, monkeypatch):
    right = self_check.expected_outputs
    wrong = {"serving_default/values": lambda x: x + 0.01, "arrays/values": lambda x: x}
    shifted = lambda *given: {name: wrong[name](x) for name, x in right(*given).items()}  # noqa: E731
    monkeypatch.setattr(self_check, "expected_outputs", shifted)
    with pytest.raises(ExportError, match=r"largest difference 0.0\d+ \(serving_default/values"):
        export(depth, tmp_path, check=[photograph(0, (40, 56))[0]])
    assert list(tmp_path.iterdir()) == []


@for_each(
    "options, message",
    [
        ({"format": "litert"}, "format must not be 'litert' for task models, such as dpt; got 'litert'"),
        ({"top": 3}, "top is an option for classifiers; got it for a DPT"),
        ({"compute_dtype": "bfloat16"}, "compute_dtype is an option for classifiers"),
        ({"signatures": ["images"]}, "signatures is an option for classifiers"),
    ],
)
def test_errors(options, message, depth, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(depth, tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("case", ANSWERED)
def test_answers_are_those_of_predict(case, tmp_path):
    preprocessing, options = ANSWERED[case]
    model = load(case, **preprocessing)
    rng = np.random.default_rng(6)
    for head, scale in SPREAD.get(case, {}).items():
        for weight in model.get_layer(head).weights:
            weight.assign(scale * rng.normal(size=weight.shape))
    served = tf.saved_model.load(str(export(model, tmp_path))).signatures["serving_default"]
    file, photo = photograph(1, (70, 101))
    (expected,) = keras_vit.predict(model, photo, **options)
    found = served(image_bytes=tf.constant([file]))
    assert {*found} <= {*vars(expected)}
    for name, values in found.items():
        wanted = getattr(expected, name)
        if wanted.dtype.kind == "i":
            assert (values[0].numpy() == wanted).mean() > 0.999 and len(np.unique(wanted)) > 1
        else:
            np.testing.assert_allclose(values[0], wanted, atol=1e-4 * max(1, np.ptp(wanted)))


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_models_of_prompts_and_boxes_take_arrays(case, tmp_path):
    folder = export(load(case), tmp_path)
    signatures = tf.saved_model.load(str(folder)).signatures
    assert {*signatures} == {"arrays"} and {*signatures["arrays"].structured_input_signature[1]} == INPUTS[case]
    text = (folder / "README.txt").read_text()
    assert "With REST" not in text
    assert all(
        f"request.inputs[\"{name}\"].CopyFrom(tf.make_tensor_proto(np.load('{name}.npy')" in text
        for name in INPUTS[case]
    )
