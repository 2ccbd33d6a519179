"""save_weights of the published families: the names of the authors, timm and transformers are read back."""

import json

import numpy as np
import pytest
import safetensors.numpy
from slow_rows import slow_after

import keras_vit

BEIT = {"position_embedding": "relative_2d", "layer_scale_init": 0.1, "pooling": "gap", "class_token": True}
BEIT |= {"norm_position": "after_pooling", "position_placement": "every", "block": {"key_bias": False}}
EVA02 = {"block": {"gated": True, "key_bias": False, "mlp_norm": True, "rotary": {"kind": "eva02"}}}
DINOV2 = {"layer_scale_init": 0.1, "num_registers": 4, "pooling": "token"}
DINOV3 = {"position_embedding": "none", "num_registers": 4, "layer_scale_init": 0.1, "epsilon": 1e-5}
DINOV3 |= {"block": {"key_bias": False, "rotary": {"kind": "dinov3"}}}
CLIP = {"embedding": {"pre_norm": True, "patch_bias": False}, "head": {"bias": False}, "gelu": "quick"}
AIMV2 = {"embedding": {"patch_norm": True}, "block": {"norm": "rms", "gated": True, "bias": False}}
AIMV2 |= {"qkv_bias": False, "pooling": "aim", "include_top": False, "epsilon": 1e-5}
SIGLIP = {"pooling": "map", "include_top": False}
PE = {**CLIP, "gelu": "erf", "pooling": "map", "class_token": True, "head": {"bias": False, "map_prefix": True}}
PE |= {"block": {"rotary": {"kind": "pe"}}, "epsilon": 1e-5}
SAM = {"window": {"size": 3, "global_blocks": (1,)}, "norm_position": "none", "head": {"neck": 6}, "pooling": "gap"}
SAM_BACKBONE = {**SAM, "pooling": "unpooled", "include_top": False}
VIT_22B = {"block": {"order": "parallel"}, "qk_norm": True, "qkv_bias": False}

# changes to the tiny ViT, layout that is written, library of the names as they are read, an array of the file
FILES = {
    "BEiT, authors": (BEIT, "original", "timm", "blocks.1.gamma_1"),
    "BEiT, timm": (BEIT, "timm", "timm", "blocks.1.attn.relative_position_bias_table"),
    "BEiT, transformers": (BEIT, "huggingface", "huggingface", "beit.encoder.layer.1.lambda_1"),
    "EVA-02, authors": (EVA02, "original", "original", "blocks.1.mlp.ffn_ln.weight"),
    "EVA-02, timm": (EVA02, "timm", "timm", "blocks.1.mlp.fc1_g.weight"),
    "DINOv2, authors": (DINOV2, "original", "original", "register_tokens"),
    "DINOv2, timm": (DINOV2, "timm", "timm", "reg_token"),
    "DINOv2, transformers": (DINOV2, "huggingface", "huggingface", "dinov2_with_registers.embeddings.register_tokens"),
    "DINOv3, authors": (DINOV3, "original", "original", "storage_tokens"),
    "DINOv3, timm": (DINOV3, "timm", "timm", "blocks.1.gamma_2"),
    "DINOv3, transformers": (DINOV3, "huggingface", "huggingface", "dinov3_vit.layer.1.attention.q_proj.bias"),
    "CLIP, authors": (CLIP, "original", "original", "visual.ln_pre.weight"),
    "CLIP, timm": (CLIP, "timm", "timm", "norm_pre.weight"),
    "CLIP, transformers": (CLIP, "huggingface", "huggingface", "visual_projection.weight"),
    "SigLIP, timm": (SIGLIP, "timm", "timm", "attn_pool.latent"),
    "SigLIP, transformers": (SIGLIP, "huggingface", "huggingface", "head.probe"),
    "PE, authors": (PE, "original", "original", "visual.attn_pool.probe"),
    "AIMv2, transformers": (AIMV2, "huggingface", "huggingface", "head.cls_token"),
    "SAM, authors": (SAM_BACKBONE, "original", "original", "image_encoder.blocks.1.attn.rel_pos_w"),
    "SAM, timm": (SAM, "timm", "timm", "head.fc.weight"),
    "SAM, transformers": (SAM_BACKBONE, "huggingface", "huggingface", "vision_encoder.neck.layer_norm2.bias"),
    "ViT-22B, timm": (VIT_22B, "timm", "timm", "blocks.1.in_proj.weight"),
}


# tests/test_golden.py writes the files of most families back
@pytest.mark.parametrize("name", slow_after(1, FILES))
def test_files_are_read_back_to_equal_logits(make_kind, weights_of, logits_of, tmp_path, name):
    changes, layout, library, array = FILES[name]
    source, model = make_kind("vit", seed=1, **changes), make_kind("vit", seed=2, **changes)
    path = tmp_path / "a.safetensors"
    keras_vit.save_weights(source, path, layout)
    assert array in safetensors.numpy.load_file(path)
    report = keras_vit.load_weights(model, path)
    assert report.source == f"{path} ({library} names)"
    zero_bias = ("head.bias",) if name == "CLIP, timm" else ()  # timm's CLIPs have one
    assert (tuple(report.unused), report.reinitialised, report.resized) == (zero_bias, (), ())
    theirs, ours = weights_of(source), weights_of(model)
    in_class_token = ("class_token/class_token", "position_embs/embedding")
    for variable, value in theirs.items():
        if not (layout == "timm" and model.config.num_registers and variable in in_class_token):
            np.testing.assert_array_equal(ours[variable], value, err_msg=variable)
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6)


@pytest.mark.parametrize("name", slow_after(2, [name for name in FILES if "transformers" in name]))
def test_folders_of_transformers_state_the_model(make_kind, logits_of, tmp_path, name):
    """`load` builds the model from config.json and the arrays alone, without our metadata."""
    changes, layout, _, array = FILES[name]
    source = make_kind("vit", seed=1, **changes)
    source.preprocessing = keras_vit.Preprocessing(size=16, interpolation="bicubic")
    keras_vit.save_weights(source, tmp_path, layout)
    arrays = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    stated = json.loads((tmp_path / "config.json").read_text())
    assert (stated["num_hidden_layers"], stated["num_attention_heads"]) == (2, 2)
    model = keras_vit.load(tmp_path, pooling=changes["pooling"] if "pooling" in changes else "token")
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-5)


def test_the_padding_of_sam_is_stated_for_transformers(make_kind, tmp_path):
    source = make_kind("vit", **SAM_BACKBONE)
    source.preprocessing = keras_vit.Preprocessing(size=16, pad=True, interpolation="bilinear_antialias")
    keras_vit.save_weights(source, tmp_path, "huggingface")
    stated = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert (stated["size"], stated["pad_size"]) == ({"longest_edge": 16}, {"height": 16, "width": 16})
    assert stated["do_pad"] is True and stated["image_processor_type"] == "SamImageProcessor"
    assert keras_vit.load(tmp_path).preprocessing == source.preprocessing


def test_official_names_of_siglip_are_those_of_big_vision(make_kind, weights_of, tmp_path):
    source, model = make_kind("vit", seed=1, **SIGLIP), make_kind("vit", seed=2, **SIGLIP)
    keras_vit.save_weights(source, tmp_path / "a.npz", "original")
    with np.load(tmp_path / "a.npz") as file:
        assert "params/img/Transformer/encoderblock_1/MlpBlock_0/Dense_0/kernel" in file.files
        assert all(name.startswith("params/img/") or name == "keras_vit" for name in file.files)
    keras_vit.load_weights(model, tmp_path / "a.npz")
    for variable, value in weights_of(source).items():
        np.testing.assert_array_equal(weights_of(model)[variable], value, err_msg=variable)


@pytest.mark.parametrize("changes", [SAM, SAM_BACKBONE])
def test_a_folder_of_timm_has_the_epsilon_of_its_sam(make_kind, logits_of, tmp_path, changes):
    """timm normalises with 1e-5, the authors with 1e-6."""
    source = make_kind("vit", seed=1, gelu="erf", epsilon=1e-5, **changes)
    keras_vit.save_weights(source, tmp_path / "model.safetensors", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")  # without our metadata
    stated = {"architecture": "samvit_base_patch16", "global_pool": "avg", "model_args": {"num_heads": 2}}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    model = keras_vit.load(tmp_path)
    assert model.config.epsilon == 1e-5
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6)


@pytest.mark.parametrize("layout", slow_after(1, ["timm", "original", "huggingface"]))
def test_files_of_sam_show_a_grid_that_is_not_square(make_kind, logits_of, tmp_path, layout):
    """They store the position table as a map; another image size has both kinds of tables resized."""
    source = make_kind("vit", seed=1, image_size=(8, 20), **SAM_BACKBONE)
    path = tmp_path / "a.safetensors"
    keras_vit.save_weights(source, path, layout)
    stored = safetensors.numpy.load_file(path)
    assert next(array.shape for name, array in stored.items() if name.endswith("pos_embed")) == (1, 2, 5, 8)
    safetensors.numpy.save_file(stored, path)  # without our metadata
    loaded = keras_vit.load(path)
    assert loaded.config.window == source.config.window and loaded.config.image_size == (8, 20)
    loaded = keras_vit.load(path, gelu=source.config.gelu, epsilon=source.config.epsilon)
    np.testing.assert_allclose(loaded(np.ones((1, 8, 20, 3))), source(np.ones((1, 8, 20, 3))), atol=1e-6)
    resized = keras_vit.resize(source, (16, 12), method="bicubic")
    model = make_kind("vit", seed=2, image_size=(16, 12), **SAM_BACKBONE)
    report = keras_vit.load_weights(model, path, resize="bicubic")
    assert len(report.resized) == 3 and sum("(bilinear)" in line for line in report.resized) == 2
    np.testing.assert_allclose(model(np.ones((1, 16, 12, 3))), resized(np.ones((1, 16, 12, 3))), atol=1e-6)
    source.save_weights(tmp_path / "a.weights.h5")
    again = make_kind("vit", seed=3, image_size=(16, 12), embedding={"resize": "bicubic"}, **SAM_BACKBONE)
    again.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_allclose(again(np.ones((1, 16, 12, 3))), resized(np.ones((1, 16, 12, 3))), atol=1e-6)
