"""Files of models for several patch or image sizes: FlexiViT, SigLIP 2 NaFlex and NaFlexViT."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from faults import for_each
from file_shapes import file_of, resolved
from slow_rows import slow_after

import keras_vit
from keras_vit.checkpoints.entries import Entry
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.match import make_plan
from keras_vit.compat.initial_values import build_deferred
from keras_vit.models import build_model

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
SIGLIP2 = GOLDEN / "siglip2_naflex_hf"


def changed(description, changes, left_out=()):
    """The described file with other shapes, {name: shape}, and without some arrays."""
    entries = {name: entry for name, entry in description.checkpoint.entries.items() if name not in left_out}
    entries |= {name: Entry(name, shape, "F32", lambda shape=shape: np.zeros(shape)) for name, shape in changes.items()}
    return read_evidence(dataclasses.replace(description.checkpoint, entries=entries))


def loadable(config, description):
    """Compares the names and shapes of a file with those of the model; reads nothing."""
    model, _ = build_deferred(lambda: build_model(config))
    return make_plan(model, description)


# --- FlexiViT


def flexible_file(size):
    """A file of timm with the table of the authors, 7 x 7 positions of patches."""
    return file_of(f"ViT-{size}_16", "timm", image_size=112, embedding={"class_position": False})


@pytest.mark.parametrize("kernel", slow_after(2, [8, 32, 16]))
def test_a_small_table_without_class_row_is_that_of_flexivit(kernel):
    """The kernel may have any size; both stay as they are, for patches of 16 pixels at 240."""
    _, description = flexible_file("S")
    described = changed(description, {"patch_embed.proj.weight": (384, 3, kernel, kernel)})
    config, table, _ = resolved(described, None, {})
    assert (table.name, config.patch_size, config.image_size) == ("FlexiViT-S", (16, 16), (240, 240))
    assert (config.embedding.kernel_size, config.embedding.position_grid) == ((kernel, kernel), (7, 7))
    assert not loadable(config, described).report.resized
    smaller = resolved(described, None, {"patch_size": 30})[0]
    assert (smaller.patch_size, smaller.embedding.kernel_size) == ((30, 30), (kernel, kernel))
    assert resolved(described, "FlexiViT-S", {})[0].embedding.kernel_size == (kernel, kernel)
    plain = resolved(described, f"ViT-S_{kernel}", {})[0] if kernel != 8 else None
    assert plain is None or plain.image_size == (7 * kernel, 7 * kernel)


@pytest.mark.parametrize(("rows", "size"), [(196, 224), (50, 112), (225, 240)])
def test_a_table_of_another_size_or_with_a_class_row_is_that_of_a_plain_vit(rows, size):
    _, description = flexible_file("S")
    config, table, _ = resolved(changed(description, {"pos_embed": (1, rows, 384)}), None, {})
    assert (table.name, config.image_size, config.embedding.kernel_size) == ("ViT-S_16", (size, size), None)


def test_timms_flexivit_is_named_by_its_config_json_and_resizes_as_timm_does():
    _, description = flexible_file("B")
    checkpoint = changed(description, {"pos_embed": (1, 225, 768)}).checkpoint
    stated = {"architecture": "flexivit_base", "pretrained_cfg": {"tag": "600ep_in1k"}}
    described = read_evidence(dataclasses.replace(checkpoint, config_json=stated))
    config, table, _ = resolved(described, None, {})
    parts = config.embedding
    assert (table.name, config.gelu, config.image_size) == ("FlexiViT-B", "erf", (240, 240))
    assert (parts.resize, parts.position_grid, parts.kernel_size) == ("bicubic_antialias", (15, 15), (16, 16))
    assert not loadable(config, described).report.resized


def test_the_buffers_of_flexivit_survive_another_image_size():
    model = keras_vit.load(GOLDEN / "flexivit_bv_tok" / "params.npz", variant="flexivit", image_size=48)
    larger = keras_vit.resize(model, 64)
    assert larger.config.embedding == model.config.embedding
    back = keras_vit.resize(larger, 48)
    images = np.load(GOLDEN / "flexivit_bv_tok" / "io.npz")["images"]
    np.testing.assert_array_equal(back(images), model(images))


# --- SigLIP 2 NaFlex


def renamed(folder, prefix="", others=()):
    """Copies the golden folder with a prefix before the names of its arrays, and with further arrays."""
    arrays = safetensors.numpy.load_file(SIGLIP2 / "model.safetensors")
    arrays = {prefix + name: array for name, array in arrays.items()}
    arrays |= {name: np.ones(1, "float32") for name in others}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return json.loads((SIGLIP2 / "config.json").read_text()), arrays


def test_the_image_tower_of_a_whole_siglip2(tmp_path, caplog):
    stated, arrays = renamed(tmp_path, "vision_model.", ("text_model.head.bias", "logit_scale", "logit_bias"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "siglip2", "vision_config": stated}))
    images = {"patch_size": 8, "max_num_patches": 16, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    with caplog.at_level("INFO", "keras_vit"):
        model = keras_vit.load(tmp_path)
    assert "the text tower of the file is not read (3 arrays)" in caplog.text
    assert (model.config.name, model.config.image_size) == ("siglip2_naflex", (32, 32))
    assert (model.preprocessing.image_size, model.preprocessing.interpolation) == ((32, 32), "bilinear_antialias")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**images, "max_num_patches": 20}))
    native = keras_vit.load(tmp_path, image_size="native")
    assert (native.preprocessing.max_tokens, native.preprocessing.patch_size) == (20, (8, 8))
    keras_vit.save_weights(native, tmp_path / "native.safetensors", "huggingface")
    again = keras_vit.load(tmp_path / "native.safetensors", image_size="native", variant="siglip2_naflex")
    assert again.preprocessing == native.preprocessing
    assert keras_vit.load(tmp_path, image_size=24).preprocessing == model.preprocessing.at(24)
    keras_vit.save_weights(model, tmp_path / "again", "huggingface")
    again = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
    assert set(arrays) - set(again) == {"text_model.head.bias", "logit_scale", "logit_bias"}
    assert all(array.tobytes() == arrays[name].tobytes() for name, array in again.items())
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (written["model_type"], written["num_patches"]) == ("siglip2_vision_model", 16)
    assert "image_size" not in written
    written = json.loads((tmp_path / "again" / "preprocessor_config.json").read_text())
    assert (written["patch_size"], written["max_num_patches"]) == (8, 16)
    assert "size" not in written


@for_each(
    ("key", "value", "message"),
    [
        ("num_patches", 25, "states a grid of 5 x 5 patches; its table has 16 rows"),
        ("patch_size", 16, r"states patch_size=\(16, 16\); the model has \(8, 8\)"),
        ("hidden_act", "relu", "hidden_act must be one of"),
        ("model_type", "siglip2_text_model", "model_type must be one of"),
    ],
)
def test_what_the_config_json_of_siglip2_contradicts_is_refused(key, value, message, tmp_path):
    stated, _ = renamed(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**stated, key: value}))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path)


def test_patches_that_are_no_square_of_rgb_need_their_size(tmp_path):
    """192 = 8 * 8 * 3; 160 = 4 * 10 * 4 numbers per patch could be many things."""
    arrays = safetensors.numpy.load_file(SIGLIP2 / "model.safetensors")
    arrays["embeddings.patch_embedding.weight"] = np.zeros((48, 160), "float32")
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"must show patch_size, .*: a patch projection, which must be a conv"):
        keras_vit.load(tmp_path / "a.safetensors", num_heads=3)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("SigLIP2-B_16-NaFlex", "huggingface"),
        ("SigLIP2-B_16-NaFlex", "timm"),
        pytest.param("SigLIP2-So400m_16-NaFlex", "timm", marks=pytest.mark.slow),
        ("NaFlexViT-B_16-parfac-gap", "timm"),
    ],
)
def test_names_and_shapes_show_the_variant(name, library):
    config, description = file_of(name, library)
    found, table, _ = resolved(description, None, {"embedding.square_positions": config.embedding.square_positions})
    assert table.name == name
    assert found.replace(name=name, dtype=config.dtype, gelu=config.gelu) == config.replace(
        **{"embedding.class_position": found.embedding.class_position}
    )
    assert not loadable(found, description).report.resized


# --- NaFlexViT


def test_positions_with_and_without_aspect_ratio_have_the_same_arrays():
    _, description = file_of("NaFlexViT-B_16-gap", "timm")
    assert "embeds.pos_embed" in description.entries
    with pytest.raises(ValueError, match="square_positions: pass variant='NaFlexViT-B_16-gap' or variant='NaFlexViT-B"):
        resolved(description, None, {})
    for name in ("NaFlexViT-B_16-gap", "NaFlexViT-B_16-par-gap"):
        stated = {"architecture": name.lower().replace("-b_16", "_base_patch16").replace("-", "_")}
        described = read_evidence(
            dataclasses.replace(description.checkpoint, config_json={**stated, "global_pool": "avg"})
        )
        for file, variant in ((described, None), (description, name)):
            config, table, _ = resolved(file, variant, {})
            assert table.name == name
            assert config.embedding.square_positions == ("par" in name)
            assert config.embedding.position_grid == ((16, 16) if "par" in name else None)
            assert not loadable(config, file).report.resized


@for_each(
    ("arguments", "message"),
    [
        ({"patchify_channels_last": False}, "patchify_channels_last in model_args must be True"),
        ({"pos_embed_align_corners": True}, "pos_embed_align_corners in model_args must be False"),
        ({"pos_embed_antialias": False}, "pos_embed_antialias in model_args must be True"),
        ({"attn_gated": True}, "attn_gated in model_args is not supported"),
    ],
)
def test_what_timm_can_do_and_this_package_cannot_is_refused(arguments, message):
    _, description = file_of("NaFlexViT-B_16-gap", "timm")
    stated = {"architecture": "naflexvit_base_patch16_gap", "model_args": arguments}
    with pytest.raises(ValueError, match=message):
        read_evidence(dataclasses.replace(description.checkpoint, config_json=stated))


def test_files_state_square_positions(tmp_path):
    source = GOLDEN / "naflex_timm_par" / "params.safetensors"
    model = keras_vit.load(source, num_heads=3, embedding={"square_positions": True})
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "timm")
    again = keras_vit.load(tmp_path / "a.safetensors")
    assert again.config == model.config
    other = keras_vit.load(source, num_heads=3)
    with pytest.raises(ValueError, match="states embedding.square_positions=True; the model has False"):
        keras_vit.load_weights(other, tmp_path / "a.safetensors")
