"""Models of drawn configs come back equal from every layout and reader, or their files are refused before a rename."""

import json
import re

import keras
import numpy as np
import pytest
import safetensors.numpy
from walked import BASES, difference, draw, model_of, outcome, outcomes

import keras_vit
from keras_vit.config.unseen import KEY, to_text, whole


@pytest.mark.parametrize(
    ("seeds", "is_full"),
    [(range(14), False), pytest.param(range(600), True, marks=pytest.mark.slow)],
)
def test_drawn_models_come_back_or_are_refused(seeds, is_full):
    """The default suite writes each model in one form, and the full walk in every one."""
    faults, held = [], 0
    for seed in seeds:
        for layout, name, found in outcomes(seed, None if is_full else [seed]):
            held += found == "held"
            if found.startswith("wrong") or layout == "keras" and found != "held":
                faults.append((seed, *draw(seed), layout, name, found))
    assert not faults, "\n".join(map(str, faults))
    assert held > len(seeds) / 4


def flipped(base, **changes):
    return BASES[base].replace(**{name.replace("__", "."): value for name, value in changes.items()})


TOKEN = {"norm_position": "after_pooling", "include_top": False}
# config, layout, file name; a part of the refusal, or None if the model comes back
CASES = [
    # fields that were true when the file was written
    (flipped("plain", **TOKEN), "timm", "a.safetensors", None),
    (flipped("TIPS", **TOKEN), "original", "a.safetensors", None),
    (flipped("Perception Encoder", head__map_heads=None, head__bias=False), "original", "a.safetensors", None),
    (flipped("EVA-02", block__rotary={"kind": "eva02", "reference_grid": None}), "timm", "a.safetensors", None),
    (flipped("DINOv3", block__key_bias=True, block__gated=False), "original", "a.safetensors", None),
    (flipped("SAM", include_top=False), "timm", "a.safetensors", None),
    # what nothing could read back
    (flipped("SAM backbone", window__relative_positions=False), "original", "a.safetensors", None),
    (flipped("AIMv2 native", image_size=32, pooling="gap"), "huggingface", "folder", None),
    (flipped("NaFlexViT", channels=1), "timm", "a.safetensors", None),
    (flipped("plain", embedding__class_position=False), "official", "a.npz", "embedding.class_position=False"),
    (flipped("EVA-02", block__order="parallel"), "timm", "a.safetensors", "block.order='parallel'"),
    (flipped("DINOv3", num_registers=0), "original", "a.safetensors", "block.gated=True"),
    (
        flipped("DINOv3", gelu="quick", block__gated=False),
        "huggingface",
        "folder",
        "gelu among .*the model has 'quick'",
    ),
]


def test_what_was_read_back_as_another_model(tmp_path):
    for index, (config, layout, name, refusal) in enumerate(CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        found = outcome(model_of(config.resolve(), seed=1), layout, name, folder)
        if refusal is None:
            assert found == "held", (config, found)
        else:
            assert found.startswith("refused") and "model.save)" in found, found
            assert re.search(refusal, found), found
            assert list(folder.iterdir()) == []


def test_a_refusal_names_a_layout_that_holds_the_model_and_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a.npz"
    keras_vit.save_weights(model_of(BASES["plain"], 2), path)
    before = path.read_bytes()
    model = model_of(flipped("plain", embedding__class_position=False).resolve(), 2)
    with pytest.raises(ValueError, match=r"\(use .*layout='timm' in a \.safetensors file or model\.save\)$"):
        keras_vit.save_weights(model, path)
    assert path.read_bytes() == before
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "timm")
    assert difference(model, keras_vit.load(tmp_path / "a.safetensors")) == "held"


def test_a_pooling_that_timm_states_is_used(tmp_path):
    """timm's `VisionTransformer(global_pool="token", fc_norm=True)` normalises the class token."""
    model = model_of(flipped("plain", norm_position="after_pooling", gelu="erf", include_top=False).resolve(), 2)
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")  # without our metadata
    for pooling, expected in (("token", 0), ("avg", slice(1, None))):
        stated = {"architecture": "vit_tiny_patch16_224", "global_pool": pooling, "model_args": {"patch_size": 8}}
        (tmp_path / "config.json").write_text(json.dumps(stated))
        read = keras_vit.load(tmp_path, num_heads=3)
        images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
        tokens = keras.Model(model.input, model.get_layer("block_01").output)(images)
        pooled = np.asarray(tokens)[:, expected].reshape(2, -1, 48).mean(axis=1)
        centred = pooled - pooled.mean(axis=-1, keepdims=True)
        normalised = centred / np.sqrt(pooled.var(axis=-1, keepdims=True) + 1e-6)
        norm = {name: arrays[f"fc_norm.{name}"] for name in ("weight", "bias")}
        np.testing.assert_allclose(read(images), normalised * norm["weight"] + norm["bias"], atol=1e-5)


def test_models_of_native_aspect_ratios_come_back_in_a_folder_of_transformers(tmp_path):
    """Its preprocessor_config.json states the number of patches, and no size."""
    for index, base in enumerate(("SigLIP 2 NaFlex", "AIMv2 native")):
        model = keras_vit.resize(model_of(BASES[base].resolve(), 2), "native", max_tokens=100)
        keras_vit.save_weights(model, tmp_path / str(index), "huggingface")
        read = keras_vit.load(tmp_path / str(index))
        assert (read.config, read.preprocessing) == (model.config, model.preprocessing)
        assert keras_vit.load(tmp_path / str(index), image_size=48).config.image_size == (48, 48)
    path = tmp_path / "0" / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "image_mean": [0.1, 0.2, 0.3]}))
    assert keras_vit.load(tmp_path / "0", image_size=32).preprocessing.mean == (0.1, 0.2, 0.3)  # whoever changed it


def test_the_activation_of_a_head_comes_back(tmp_path):
    """The sigmoid of a logit of 0.95 is 0.72."""
    model = model_of(flipped("plain", classifier_activation="sigmoid").resolve(), 2)
    model.get_layer("head").set_weights([np.full((48, 5), 1e-12), np.full(5, 0.95)])  # zeros warn
    for layout, name in (("official", "a.npz"), ("timm", "a.safetensors"), ("huggingface", "folder")):
        keras_vit.save_weights(model, tmp_path / name, layout)
        read = keras_vit.load(tmp_path / name)
        np.testing.assert_allclose(read(np.zeros((1, 32, 32, 3))), 1 / (1 + np.exp(-0.95)), atol=1e-6)
        assert keras_vit.load(tmp_path / name, classes=3).config.classifier_activation is None  # of the old head
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["problem_type"] == "multi_label_classification"


def test_damaged_metadata_of_a_whole_config_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    model = model_of(BASES["plain"].resolve(), 2)
    keras_vit.save_weights(model, path, "timm")
    arrays = safetensors.numpy.load_file(path)
    values = json.loads(to_text(model.config, None, model=whole(model.config)))
    for changes, words in (
        ({"num_layers": 10**6}, "must hold the arrays of 1000000 blocks, which it states; it holds"),
        ({"hidden_dim": 96}, r"shape \(48,\), the model needs \(96,\)"),
        ({"num_heads": "x"}, "must be what save_weights writes; got .*num_heads"),
        ({"class_name": "Model"}, "class_name of model must be one of"),
    ):
        text = json.dumps({**values, "model": {**values["model"], **changes}})
        safetensors.numpy.save_file(arrays, path, {KEY: text})
        with pytest.raises(ValueError, match=words):
            keras_vit.load(path)
