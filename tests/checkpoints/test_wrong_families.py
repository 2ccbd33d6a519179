"""Files of published families that a model must not take: each raises an error that names the cause, or is reported.

The files of whole models are sparse: their arrays are never read, because names and shapes are compared first.
"""

import json
import logging
import pathlib
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
from faults import for_each
from file_shapes import file_of
from slow_rows import slow_after

import keras_vit
from keras_vit.models import build_model

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"

# model of a file, library of its names, constructor -> model that the error names
OTHER_CONSTRUCTORS = [
    ("DINOv2-S_14", "timm", "ViT_S16", "DINOv2-S_14"),
    ("DINOv2-S_14", "huggingface", "DINOv2_S14_reg4", "DINOv2-S_14"),
    ("DINOv2-S_14-reg4", "original", "DINOv2_S14", "DINOv2-S_14-reg4"),
    ("DINOv2-B_14", "huggingface", "ViT_B16", "DINOv2-B_14"),
    ("DINOv3-S_16", "huggingface", "ViT_S16", "DINOv3-S_16"),
    ("DINOv3-S_16", "timm", "DINOv2_S14", "DINOv3-S_16"),
    ("DINOv3-Splus_16", "original", "DINOv3_S16", "DINOv3-Splus_16"),
    ("DINOv3-B_16", "huggingface", "DINOv3_S16", "DINOv3-B_16"),
    ("SigLIP-B_16", "timm", "ViT_B16", "SigLIP-B_16"),
    ("SigLIP-B_16", "huggingface", "CLIP_B16", "SigLIP-B_16"),
    ("SigLIP2-B_16-NaFlex", "huggingface", "SigLIP2_B16", "SigLIP 2 NaFlex"),
    ("SigLIP2-B_16-NaFlex", "timm", "SigLIP2_So400m16_NaFlex", "SigLIP2-B_16-NaFlex"),
    ("NaFlexViT-B_16-gap", "timm", "ViT_B16", "NaFlexViT"),
    ("NaFlexViT-B_16-par-gap", "timm", "NaFlexViT_B16_parfac_gap", "NaFlexViT-B_16-par-gap"),
    ("NaFlexViT-B_16-parfac-gap", "timm", "NaFlexViT_B16_gap", "NaFlexViT-B_16-parfac-gap"),
    ("CLIP-B_32", "huggingface", "ViT_B32", "CLIP-B_32"),
    ("CLIP-B_32", "original", "CLIP_B16", "CLIP-B_32"),
    ("CLIP-B_16", "timm", "SigLIP_B16", "CLIP-B_16"),
    ("EVA02-Ti_14", "timm", "EVA02_S14", "EVA02-Ti_14"),
    ("EVA02-S_14", "original", "ViT_S16", "EVA02-S_14"),
    ("EVA02-B_14", "timm", "EVA02_CLIP_B16", "EVA02-B_14"),
    ("BEiT-B_16", "timm", "ViT_B16", "BEiT-B_16"),
    ("BEiT-B_16", "huggingface", "BEiT_L16", "BEiT-B_16"),
    ("DeiT3-S_16", "timm", "DINOv2_S14", "DeiT3-S_16"),
    ("DeiT3-M_16", "timm", "ViT_S16", "DeiT3-M_16"),
    ("MAE-B_16", "timm", "ViT_L16", "MAE-B_16"),
    ("PE-core-T_16", "timm", "EVA02_Ti14", "PE-core-T_16"),
    ("PE-core-B_16", "timm", "CLIP_B16", "PE-core-B_16"),
    ("TIPS-S_14", "timm", "DINOv2_S14", "TIPS-S_14"),
    ("IJEPA-H_14", "timm", "SigLIP_So400m14", "IJEPA-H_14"),
    ("ViT-little_16-reg4", "timm", "ViT_S16", "ViT-little_16-reg4"),
]


def sparse_file(path, entries):
    """Writes a safetensors file of zeros that takes no space on the disk."""
    header, end = {}, 0
    for name, entry in entries.items():
        start, end = end, end + 4 * int(np.prod(entry.shape))
        header[name] = {"dtype": "F32", "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


@pytest.mark.parametrize(("name", "library", "constructor", "named"), slow_after(3, OTHER_CONSTRUCTORS))
def test_another_constructor_names_the_right_one(name, library, constructor, named, tmp_path):
    _, description = file_of(name, library)
    path = sparse_file(tmp_path / "model.safetensors", description.checkpoint.entries)
    with pytest.raises(ValueError, match=rf"holds the weights of .*\b{named}\b.*, not of"):
        getattr(keras_vit, constructor)(weights=path)


def _arrays(case):
    path = GOLDEN / case / ("model.safetensors" if (GOLDEN / case / "config.json").exists() else "params.safetensors")
    return safetensors.numpy.load_file(path)


def _written(tmp_path, arrays):
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


_CLIP = {"num_heads": 3, "variant": "clip"}
_DINOV2 = {"num_heads": 3, "variant": "dinov2_reg4", "gelu": "erf"}


@for_each(
    ("case", "change", "arguments", "message"),
    [
        (
            "clip_timm_gelu",
            lambda a: {k.replace("blocks.0.norm1", "blocks.0.layer_norm1"): v for k, v in a.items()},
            _CLIP,
            "must hold a model of the family 'clip'",
        ),
        (
            "clip_timm_gelu",
            lambda a: {k: v for k, v in a.items() if not k.startswith("blocks.0.")},
            _CLIP,
            "first block were expected",
        ),
        (
            "dinov2_timm_reg4",
            lambda a: {k: v for k, v in a.items() if k != "blocks.1.ls2.gamma"},
            _DINOV2,
            "missing blocks.1.ls2.gamma",
        ),
        (
            "dinov2_timm_reg4",
            lambda a: {**a, "blocks.1.attn.qkv.bias": a["blocks.1.attn.qkv.bias"][:-1]},
            _DINOV2,
            r"blocks.1.attn.qkv.bias: shape \(143,\)",
        ),
        (
            "dinov2_timm_reg4",
            lambda a: {**a, "blocks.0.mlp.fc3.weight": a["blocks.0.mlp.fc1.weight"]},
            _DINOV2,
            "extra blocks.0.mlp.fc3.weight",
        ),
        (
            "dinov2_timm_reg4",
            lambda a: {**a, "encoder.layer.0.norm1.weight": a["blocks.0.norm1.weight"]},
            _DINOV2,
            "extra encoder.layer.0.norm1.weight|missing|expected",
        ),
        ("dinov2_timm_reg4", lambda a: a, {"variant": "dinov2_reg4"}, "do not show num_heads: pass num_heads="),
        ("dinov2_timm_reg4", lambda a: a, {"variant": "DINOv2-S_14-reg4"}, "must hold the weights of DINOv2-S_14-reg4"),
        ("clip_timm_gelu", lambda a: a, {"num_heads": 3}, "which differ in gelu.*pass variant='clip'"),
        ("clip_openai_visual", lambda a: a, {"num_heads": 5, "variant": "clip"}, "divisible by num_heads"),
        ("eva02_timm_small", lambda a: a, {"num_heads": 3, "variant": "beit"}, "."),
        (
            "vit22b_timm_xp",
            lambda a: {k: v for k, v in a.items() if "mlp_bias" not in k},
            {"variant": "vit22b", "gelu": "erf"},
            "must hold a model of the family 'vit22b'",
        ),
        (
            "dinov3_orig",
            lambda a: {**a, "blocks.0.attn.qkv.bias": a["blocks.0.attn.qkv.bias"][:-1]},
            {"num_heads": 3, "variant": "dinov3", "image_size": 32},
            "must have 3 equal parts",
        ),
        (
            "siglip_timm_erf",
            lambda a: {**a, "patch_embed.proj.weight": a["patch_embed.proj.weight"].reshape(48, -1)},
            {"num_heads": 3, "variant": "siglip"},
            "patch projection, which must be a convolution",
        ),
        (
            "beit_orig",
            lambda a: {**a, "cls_token": a["cls_token"][..., :-1]},
            {"num_heads": 3, "variant": "beit"},
            "cls_token",
        ),
        (
            "aimv2_hf",
            lambda a: {**a, "head.q_proj.weight": a["head.k_proj.weight"]},
            {"num_heads": 3, "variant": "aimv2"},
            "extra head.q_proj.weight",
        ),
    ],
)
def test_a_damaged_or_ambiguous_file_is_refused(case, change, arguments, message, tmp_path):
    path = _written(tmp_path, change(_arrays(case)))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(path, **arguments)


@for_each(
    ("case", "changes", "message"),
    [
        ("dinov2_hf_cls", {"model_type": "dinov9"}, "model_type must be one of"),
        ("dinov2_hf_cls", {"hidden_size": 96}, "the file states hidden_dim=96"),
        ("dinov2_hf_cls", {"num_attention_heads": 5}, "divisible by num_heads"),
        ("dinov2_hf_cls", {"use_swiglu_ffn": True}, "the file states block.gated=True"),
        ("dinov2_hf_cls", {"apply_layernorm": False}, "apply_layernorm must be True"),
        ("dinov3_hf_rect", {"hidden_act": "silu"}, "hidden_act must be 'silu' with use_gated_mlp"),
        ("dinov3_hf_rect", {"num_register_tokens": 0}, "the file states num_registers=0"),
        ("dinov3_hf_rect", {"key_bias": True}, "the file states block.key_bias=True"),
        ("clip_hf_quickgelu", {"hidden_act": "relu"}, "hidden_act must be one of"),
        ("siglip_hf_map", {"model_type": "clip_vision_model", "num_hidden_layers": 3}, "the file states num_layers=3"),
        ("aimv2_hf", {"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ("beit_hf_cls", {"patch_size": 16}, "the file states patch_size"),
    ],
)
def test_a_config_json_that_contradicts_the_arrays_is_refused(case, changes, message, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(GOLDEN / case / "model.safetensors", folder)
    values = json.loads((GOLDEN / case / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 4}, "the file states num_heads=3"),
        ({"gelu": "erf"}, "the file states gelu='quick'"),
        ({"block.order": "post_norm"}, "."),
    ],
)
def test_a_model_of_equal_shapes_takes_no_file_that_states_otherwise(changes, message, tmp_path):
    model = keras_vit.load(GOLDEN / "clip_hf_quickgelu")
    other = build_model(model.config.replace(**changes))
    if "block.order" in changes:  # transformers has no key for it; our own files state it
        keras_vit.save_weights(other, tmp_path / "other.safetensors", "timm")
        with pytest.raises(ValueError, match="the file states block.order='post_norm'"):
            keras_vit.load_weights(model, tmp_path / "other.safetensors")
        return
    with pytest.raises(ValueError, match=message):
        keras_vit.load_weights(other, GOLDEN / "clip_hf_quickgelu")


def test_a_text_tower_is_left_out_and_named(caplog):
    with caplog.at_level(logging.INFO, "keras_vit"):
        model = keras_vit.load(GOLDEN / "siglip_hf_two_tower")
    assert "the text tower of the file is not read" in caplog.text
    arrays = np.load(GOLDEN / "siglip_hf_two_tower" / "io.npz")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(arrays["images"])), arrays["logits"], atol=2e-5)


@for_each("source", ["DINOv2-B_14", "imagenet", "nobody/nothing"])
def test_a_source_that_is_no_file_is_refused(source):
    with pytest.raises(FileNotFoundError, match=rf"source='{source}' is no file.*create_model takes our"):
        keras_vit.load(source)


@for_each(
    ("name", "address"),
    [
        ("dinov2_vitb14_pretrain.pth", "timm/vit_base_patch14_dinov2.lvd142m"),
        ("dinov2_vitg14_reg4_pretrain.pth", "timm/vit_giant_patch14_reg4_dinov2.lvd142m"),
        ("dinov3_vits16plus_pretrain_lvd1689m-4057cbaa.pth", "facebook/dinov3-vits16plus-pretrain-lvd1689m"),
        ("mae_pretrain_vit_large.pth", "timm/vit_large_patch16_224.mae"),
        ("ViT-B-32.pt", "openai/clip-vit-base-patch32"),
        ("PE-Core-L14-336.pt", "timm/vit_pe_core_large_patch14_336.fb"),
        ("eva02_L_pt_m38m_p14.pt", "timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k"),
        ("mine.pth", "safetensors.torch.save_file"),
    ],
)
def test_a_pickle_is_refused_with_the_name_of_the_same_weights(name, address, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ValueError, match=rf"must not be a pickle.*{address}"):
        keras_vit.load(tmp_path / name)
