"""OWL-ViT and OWLv2: other sizes, saving and the errors; tests/test_golden.py has the numbers of transformers."""

import functools
import json
import logging

import keras
import numpy as np
import pytest
from conftest import TESTS
from faults import for_each
from golden_arrays import stored_in
from golden_task_models import check
from keras import ops

import keras_vit
from keras_vit.config.text import TextConfig
from keras_vit.layers.open_vocabulary import (
    BLANK_LOGIT,
    CellBoxes,
    ClassHead,
    ClassTokenProduct,
    QueryLogits,
    best_example,
    cell_bias,
)
from keras_vit.models.owl import OWL

FOLDER = TESTS / "golden_tasks" / "owlv2"
PAIR = np.ones((3, 2)), np.ones((3, 4))  # logits of queries, and boxes
CASE = json.loads((FOLDER / "case.json").read_text())
GOLDEN = stored_in(FOLDER / "io.npz")
IDS, MASK = (GOLDEN[key].reshape(2, 3, -1) for key in ("input_ids", "attention_mask"))


@functools.cache
def _model():
    return keras_vit.load(FOLDER)


def _without_objectness(model, **changes):
    """The same weights as an OWL-ViT."""
    config = {**model.get_config(), "objectness": False, **changes}
    copy = OWL.from_config(config)
    values = {variable.path: variable for variable in model.weights}
    for variable in copy.weights:
        variable.assign(values[variable.path])
    return copy


def _compare(key, found):
    check(CASE, key, found, GOLDEN[key])


def test_padding_may_be_left_out_or_be_masked():
    queries, is_query = _model().embed_text(IDS, MASK), IDS[..., 0] > 0
    np.testing.assert_array_equal(ops.convert_to_numpy(_model().embed_text(IDS)), queries)
    short = _model().embed_text(IDS[..., : int(MASK.sum(-1).max())])
    np.testing.assert_array_equal(ops.convert_to_numpy(short), queries)
    # a mask turns the tokens after its ones into padding
    other = _model().embed_text(np.where(MASK, IDS, 7).reshape(6, -1), MASK.reshape(6, -1))
    np.testing.assert_array_equal(ops.convert_to_numpy(other)[is_query.reshape(-1)], queries[is_query])


def test_what_is_no_query_has_the_lowest_logit():
    logits = _model().detect(GOLDEN["images"], _model().embed_text(IDS, MASK))["logits"]
    assert (ops.convert_to_numpy(logits)[1, :, 2] == BLANK_LOGIT).all()


def test_the_box_of_an_example_is_that_of_its_patch():
    examples = _model().embed_examples(GOLDEN["query_images"])
    for boxes, index, chosen in zip(GOLDEN["guided_query_boxes"], examples["patches"], examples["boxes"], strict=True):
        np.testing.assert_allclose(chosen, boxes[int(index)], atol=5e-5)


def test_every_array_is_used_once(caplog):
    with caplog.at_level(logging.INFO, "keras_vit"):
        keras_vit.load(FOLDER)
    report = caplog.records[-1].msg
    assert set(report.unused) == {"owlv2.logit_scale", "owlv2.visual_projection.weight"}
    assert not (report.missing or report.reinitialised or report.resized or report.assumed)
    unread = 1 + 20 * 24
    assert _model().count_params() + unread == CASE["num_params"]


def test_without_objectness():
    model, copy = _model(), _without_objectness(_model())
    assert len(model.weights) - len(copy.weights) == 6
    found = copy.detect(GOLDEN["images"], copy.embed_text(IDS))
    assert sorted(found) == ["boxes", "logits"]
    _compare("logits", found["logits"])
    _compare("pred_boxes", found["boxes"])
    # the definition of the example's patch, written again
    outputs = {key: ops.convert_to_numpy(value) for key, value in copy(GOLDEN["query_images"]).items()}
    for boxes, embeddings, chosen in zip(
        outputs["boxes"], outputs["class_embeds"], copy.embed_examples(GOLDEN["query_images"])["patches"], strict=True
    ):
        x, y, w, h = boxes.T
        shared = (np.minimum(x + w / 2, 1) - np.maximum(x - w / 2, 0)) * (
            np.minimum(y + h / 2, 1) - np.maximum(y - h / 2, 0)
        )
        iou = shared / (w * h + 1 - shared)
        candidates = np.flatnonzero(iou >= 0.8 * iou.max())
        assert int(chosen) == candidates[np.argmin(embeddings[candidates] @ embeddings.mean(0))]


def test_an_owl_vit_file(tmp_path):
    """A folder with the names of OWL-ViT, which has no objectness head."""
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = safetensors.load_file(FOLDER / "model.safetensors")
    arrays = {k.replace("owlv2.", "owlvit."): v for k, v in arrays.items() if not k.startswith("objectness_head")}
    safetensors.save_file(arrays, tmp_path / "model.safetensors", {"format": "pt"})
    config = (FOLDER / "config.json").read_text().replace("owlv2", "owlvit").replace("Owlv2", "OwlViT")
    (tmp_path / "config.json").write_text(config)
    model = keras_vit.load(tmp_path)
    found = model.detect(GOLDEN["images"], model.embed_text(IDS))
    assert sorted(found) == ["boxes", "logits"]
    _compare("logits", found["logits"])
    values = json.loads(config)
    values["text_config"]["num_hidden_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"extra text_model.encoder.layers.1"):
        keras_vit.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(config), "anchors": 3}))
    with pytest.raises(ValueError, match="anchors in config.json is not supported by keras_vit; got 3"):
        keras_vit.load(tmp_path)


def test_images_of_other_sizes():
    """The position table is resized once, or in every call: the same boxes; the grid of the image is theirs."""
    images = np.random.default_rng(0).uniform(-1, 1, (2, 48, 24, 3)).astype("float32")
    fixed = keras_vit.load(FOLDER, image_size=(48, 24))
    of_any_size = {"image_size": "any", "embedding.position_grid": (4, 4)}
    free = OWL(keras_vit.VisionTransformer(_model().config.replace(**of_any_size)), _model().text_config)
    free.set_weights(_model().get_weights())
    assert free.config.embedding.resize == "bicubic"
    expected, found = fixed(images), free(images)
    assert expected["image_embeds"].shape == (2, 6, 3, 24)
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], atol=2e-5, err_msg=key)
    again = OWL.from_config(free.get_config())
    assert again.input_shape == (None, None, None, 3)
    np.testing.assert_allclose(free(GOLDEN["images"])["boxes"], GOLDEN["pred_boxes"], atol=5e-5)


def test_predict_and_classify():
    model, queries = _model(), np.array(_model().embed_text(IDS[0]))
    outputs = model.predict(GOLDEN["images"], verbose=0)
    whole = model.detect(GOLDEN["images"], np.stack([queries, queries]))
    np.testing.assert_allclose(model.classify(outputs, queries), whole["logits"], atol=1e-5)
    # queries need not be normalised
    np.testing.assert_allclose(model.classify(outputs, 50 * queries), whole["logits"], atol=1e-4)


def test_objectness_passes_no_gradients_on():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("reads the gradients of TensorFlow")
    import tensorflow as tf

    model = _model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(GOLDEN["images"])["objectness"])
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    reached = {v.path for v, g in zip(model.trainable_variables, gradients, strict=True) if g is not None}
    assert {path.partition("/")[0] for path in reached} == {"objectness_head"}
    queries = tf.zeros((2, 3, 20))
    with tf.GradientTape() as tape:
        tape.watch(queries)
        logits = model.detect(GOLDEN["images"], queries)["logits"]
    assert np.isfinite(tape.gradient(logits, queries)).all()


def test_boxes_of_cells():
    bias = 1 / (1 + np.exp(-ops.convert_to_numpy(cell_bias(2, 4)).astype("float64")))
    assert bias.shape == (8, 4)
    np.testing.assert_allclose(bias[0], [0.25, 0.5, 0.25, 0.5], atol=2e-4)  # the lower right corner of the first cell
    np.testing.assert_allclose(bias[-1], [1, 1, 0.25, 0.5], atol=2e-4)


def test_layers_keep_their_config():
    for layer in (ClassTokenProduct(), ClassHead(5), QueryLogits(1e-4), CellBoxes()):
        copy = type(layer).from_config(layer.get_config())
        assert copy.get_config() == layer.get_config()
    shapes = [one.shape for one in ClassHead(5)(np.zeros((2, 3, 4), "float32"))]
    assert shapes == [(2, 3, 5), (2, 3, 1), (2, 3, 1)]


def test_an_example_whose_boxes_are_all_outside():
    boxes = np.array([[[3.0, 3, 1, 1], [2, 2, 1, 1], [5, 5, 1, 1]]], "float32")  # the second is nearest to the image
    embeddings = np.array([[[0.0, -9], [9, 9], [1, -9]]], "float32")
    assert int(best_example(boxes, embeddings)[0]) == 1


# --- errors

TEXT = dict(vocab_size=9, context_length=4, hidden_dim=4, num_layers=1, num_heads=2, mlp_dim=8, projection_dim=4)
TEXT |= dict(projection_bias=False, causal=True, pooling="end", gelu="quick", epsilon=1e-5)


def _encoder(**changes):
    fields = dict(name="tiny", image_size=16, patch_size=8, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8)
    return keras_vit.VisionTransformer(keras_vit.ViTConfig(**fields | dict(include_top=False) | changes))


@for_each(
    "make, message",
    [
        (lambda: OWL(_encoder(), TextConfig(**TEXT | {"pooling": "last"})), "text must have causal=True and pooling="),
        (lambda: OWL(_encoder(), {**TEXT, "causal": False}), "got causal=False"),
        (lambda: OWL(_encoder(), 3), "text must be a TextConfig of keras_vit.*; got text=3"),
        (lambda: OWL(_encoder(), TEXT, objectness=1), "objectness must be True or False; got objectness=1"),
        (lambda: OWL(_encoder(num_registers=2), TEXT), "no registers.*1 class tokens, 2 registers"),
        (lambda: OWL(_encoder(class_token=False, pooling="gap"), TEXT), "encoder must have a class token.*got 0 class"),
        (lambda: OWL(_encoder(norm_position="none"), TEXT), "norm_position='none'"),
        (lambda: ClassHead(0), "width must be an integer of at least 1; got width=0"),
        (lambda: QueryLogits(epsilon=-1), "epsilon must be a finite number above 0; got epsilon=-1"),
        (
            lambda: _model().embed_text([[1.5]]),
            r"texts must be strings, or integers .* at most 9 tokens; got float.* \(1, 1\)",
        ),
        (lambda: _model().embed_text(np.ones((2, 10), int)), r"at most 9 tokens; got int64 of shape \(2, 10\)"),
        (lambda: _model().embed_text(np.full((2, 3), 60)), "texts must have ids from 0 to 59.*; got 60 to 60"),
        (lambda: _model().embed_text(np.ones((0, 3), int)), r"at least one; got an array of shape \(0, 3\)"),
        (
            lambda: _model().embed_text(np.ones((2, 3), int), np.ones((2, 2))),
            r"attention_mask must .* \(2, 3\); got \(2, 2\)",
        ),
        (
            lambda: _model().embed_text(np.ones((1, 3), int), np.array([[0, 1, 1]])),
            r"ones, then zeros.*got \[0, 1, 1\]",
        ),
        (
            lambda: _model().embed_text(np.ones((1, 3), int), np.array([[2, 1, 0]])),
            r"ones, then zeros.*got \[2, 1, 0\]",
        ),
        (lambda: _model().detect(GOLDEN["images"], np.ones((2, 3, 19))), r"\(2, queries, 20\); got .* \(2, 3, 19\)"),
        (lambda: _model().detect(GOLDEN["images"], np.ones((3, 3, 20))), r"\(queries, 20\) or .*got .* \(3, 3, 20\)"),
        (lambda: _model().classify({"boxes": 1}, np.ones((3, 20))), r"found must be the dict .*; got \['boxes'\]"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_encoder_must_be_a_vision_transformer():
    with pytest.raises(TypeError, match="encoder must be a keras_vit.VisionTransformer; got Sequential"):
        OWL(keras.Sequential(), TEXT)
