"""CLIPSeg against transformers, as a `.keras` file, and its errors."""

import json
import logging

import keras
import numpy as np
import pytest
from conftest import TESTS
from faults import for_each
from golden_arrays import stored_in
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.layers.clipseg import FiLM, MaskHead, PostNormBlock
from keras_vit.models.clipseg import CLIPSeg

CASE = TESTS / "golden_tasks" / "clipseg_text"
LAYERS = {
    "vision_after_embeddings": "position_embs",
    **{f"reduced_{level}": f"level_{level}_reduced" for level in range(3)},
    **{f"decoder_{level}": f"level_{level}_block" for level in range(3)},
}


@pytest.fixture(scope="module")
def model():
    return keras_vit.load(CASE)


@pytest.fixture(scope="module")
def arrays():
    return stored_in(CASE / "io.npz")


def _numbers(tensor):
    return keras.ops.convert_to_numpy(tensor)


def _answers(model, arrays):
    conditions = model.embed_text(arrays["input_ids"], arrays["attention_mask"])
    images = keras.ops.convert_to_tensor(arrays["images"])
    layers = keras.Model(model.input, {key: model.get_layer(name).output for key, name in LAYERS.items()})
    return {
        "conditional_embeddings": conditions,
        "pooled_output": model.embed_images(images),
        "logits": model.segment(images, conditions),
        **layers({"images": images, "condition": conditions}),
    }


def test_every_array_is_used_or_listed(caplog):
    with caplog.at_level(logging.INFO, "keras_vit"):
        model = keras_vit.load(CASE)
    assert "Loaded 169 arrays" in caplog.text
    assert "unused (the scale of the similarities): clip.logit_scale\n" in caplog.text
    count = json.loads((CASE / "case.json").read_text())["num_params"]
    assert model.count_params() == count - 1  # the scale


def test_padding_has_no_influence(model, arrays):
    ids, lengths = arrays["input_ids"], arrays["attention_mask"].sum(-1)
    expected = _numbers(model.embed_text(ids))
    other = np.where(arrays["attention_mask"], ids, 7)
    np.testing.assert_allclose(_numbers(model.embed_text(other)), expected, rtol=0, atol=1e-6)
    for row, length in enumerate(lengths):
        short = model.embed_text(ids[row : row + 1, :length])
        np.testing.assert_allclose(_numbers(short)[0], expected[row], rtol=0, atol=2e-6)


def test_one_condition_for_all_images_of_another_shape(model, arrays):
    images = arrays["images"][:, :24]
    conditions = _numbers(model.embed_text(arrays["input_ids"]))
    logits = _numbers(model.segment(images, conditions[:1]))
    assert logits.shape == (2, 24, 32)
    predicted = model.predict({"images": images, "condition": conditions[[0, 0]]}, verbose=0)
    np.testing.assert_allclose(predicted, logits, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_it_trains(model, arrays):
    copy = CLIPSeg.from_config(model.get_config())
    copy.encoder.trainable = copy.text_tower.trainable = False
    before = [_numbers(variable) for variable in copy.trainable_weights]
    copy.compile("adam", "binary_crossentropy")
    inputs = {"images": arrays["images"], "condition": arrays["conditional_embeddings"]}
    copy.fit(inputs, (arrays["logits"] > 0).astype("float32"), epochs=1, verbose=0)
    after = [_numbers(variable) for variable in copy.trainable_weights]
    assert len(after) == 3 * (2 + 12) + 4 + 2  # the decoder: levels, FiLM and the head
    changed = [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
    assert all(changed)


def test_a_file_with_the_refined_head_and_unused_deep_blocks(tmp_path):
    config = json.loads((CASE / "config.json").read_text())
    config |= {"use_complex_transposed_convolution": True, "extract_layers": [0, 1]}
    config["vision_config"] |= {"patch_size": 16, "image_size": 48}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights, draw = load_file(CASE / "model.safetensors"), np.random.default_rng(0).standard_normal
    head = "decoder.transposed_convolution"
    dropped = (head, "decoder.reduces.2.", "decoder.layers.2.")
    weights = {name: array for name, array in weights.items() if not name.startswith(dropped)}
    shapes = {f"{head}.0": (12, 12, 3, 3), f"{head}.2": (12, 6, 4, 4), f"{head}.4": (6, 1, 4, 4)}
    for name, shape in {"clip.vision_model.embeddings.patch_embedding": (24, 3, 16, 16), **shapes}.items():
        weights[f"{name}.weight"] = draw(shape).astype("float32")
    for name, width in {f"{head}.0": 12, f"{head}.2": 6, f"{head}.4": 1}.items():
        weights[f"{name}.bias"] = draw(width).astype("float32")
    save_file(weights, tmp_path / "model.safetensors")
    model = keras_vit.load(tmp_path)
    found = _numbers(model.get_layer("mask_head").steps[1].kernel)
    np.testing.assert_array_equal(found, weights[f"{head}.2.weight"].transpose(2, 3, 1, 0))
    assert model.segment(np.zeros((1, 32, 64, 3)), np.zeros((1, 16))).shape == (1, 32, 64)
    assert model.count_params() == sum(array.size for array in weights.values()) - 1


def test_the_refined_head():
    head = MaskHead(refined=True)
    assert head(np.zeros((2, 3, 4, 8), "float32")).shape == (2, 48, 64)
    assert [tuple(weight.shape) for weight in head.weights if len(weight.shape) > 1] == [
        (3, 3, 8, 8),
        (4, 4, 4, 8),
        (4, 4, 1, 4),
    ]
    assert head.compute_output_shape((None, 3, None, 8)) == (None, 48, None)


@for_each("layer", [FiLM(), PostNormBlock(2, 8, 1e-3), MaskHead(8), MaskHead(16, True)])
def test_layers_have_configs(layer):
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


def _changed(model, **changes):
    return CLIPSeg(model.encoder, **{**model._arguments, **changes})


@for_each(
    "make, message",
    [
        (lambda model: _changed(model, blocks=[]), r"blocks must be at least one index, in ascending order"),
        (lambda model: _changed(model, blocks=[2, 1]), r"in ascending order; got blocks=\(2, 1\)"),
        (lambda model: _changed(model, blocks=[9]), "blocks must be below 4, the number of blocks of an encoder"),
        (lambda model: _changed(model, condition_level=3), "condition_level must be an integer of at least 0 and at"),
        (lambda model: _changed(model, refined=True), "refined needs patch_size=16; got refined=True"),
        (lambda model: _changed(model, num_heads=5), "num_heads must divide the width of the input; got 5 and 12"),
        (lambda model: _changed(model, text={**model._arguments["text"], "causal": False}), "must have causal=True"),
        (lambda model: model.embed_text([1, 2]), "texts must be strings, or integers .* of at most 9 tokens"),
        (lambda model: model.embed_text([[50]]), "texts must have ids from 0 to 49, at least one; got 50 to 50"),
        (lambda model: model.embed_text([[1, 2]], [[0, 1]]), "ones, then zeros, in each row"),
        (lambda model: model.embed_text([[1, 2]], [[1]]), r"attention_mask must have the shape of texts, \(1, 2\)"),
        (
            lambda model: model.segment(np.zeros((2, 32, 32, 3)), np.zeros((3, 16))),
            r"shape \(2 or 1, 16\); got",
        ),
    ],
)
def test_errors(make, message, model):
    with pytest.raises(ValueError, match=message):
        make(model)
