"""load of task models whose arrays have the names of the authors, beside a config.json of transformers."""

import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
from conftest import TESTS
from faults import for_each

import keras_vit

FOLDER = TESTS / "golden_tasks"
# names of transformers, of all versions -> those of timm, which all encoders have
TIMM = [
    (r"(embeddings\.)?patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.register_tokens", "reg_token"),
    (r"embeddings\.position_embeddings(\.weight)?", "pos_embed"),
    (r"(encoder\.)?layers?\.(?=\d+\.(att|nor|lay|mlp|int|out))", "blocks."),
    (r"attention\.(attention\.)?(q|k|v)(uery|ey|alue|_proj)\.", r"attn.\2."),
    (r"attention\.(out_proj|output\.dense)\.", "attn.proj."),
    (r"(intermediate\.dense|mlp\.fc1)\.", "mlp.fc1."),
    (r"(blocks\.\d+\.output\.dense|mlp\.fc2)\.", lambda found: found[0].replace("output.dense", "mlp.fc2")),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"(^|\.)layernorm\.", r"\1norm."),
]
# case -> names of the head, and of the whole model
AUTHORS = {
    "depth_anything_relative": [
        ("^backbone", "pretrained"),
        (r"^neck\.reassemble_stage\.layers\.(\d)\.projection", r"depth_head.projects.\1"),
        (r"^neck\.reassemble_stage\.layers\.(\d)\.resize", r"depth_head.resize_layers.\1"),
        (r"^neck\.convs\.(\d)", lambda found: f"depth_head.scratch.layer{int(found[1]) + 1}_rn"),
        (r"^neck\.fusion_stage\.layers\.(\d)", lambda found: f"depth_head.scratch.refinenet{4 - int(found[1])}"),
        (r"residual_layer(\d)\.convolution(\d)", r"resConfUnit\1.conv\2"),
        (r"(refinenet\d)\.projection", r"\1.out_conv"),
        (r"^head\.conv1", "depth_head.scratch.output_conv1"),
        (r"^head\.conv2", "depth_head.scratch.output_conv2.0"),
        (r"^head\.conv3", "depth_head.scratch.output_conv2.2"),
    ],
    "eomt_dinov2": [
        (r"^(patch|cls|reg_|pos_|blocks|norm)", r"encoder.backbone.\1"),
        ("^query", "q"),
        ("^class_predictor", "class_head"),
        (r"^mask_head\.fc(\d)", lambda found: f"mask_head.{2 * int(found[1]) - 2}"),
        (r"^upscale_block\.block\.", "upscale."),
        ("layernorm2d", "norm"),
        ("^", "network."),
    ],
    "yolos_mid": [
        (r"^vit\.", "backbone."),
        (r"embeddings\.detection_tokens", "det_token"),
        (r"encoder\.mid_position_embeddings", "mid_pos_embed"),
        ("^class_labels_classifier", "class_embed"),
        ("^bbox_predictor", "bbox_embed"),
    ],
    "vitpose_simple": [(r"^head\.conv\.", "keypoint_head.final_layer."), (r"^backbone\.norm\.", "backbone.last_norm.")],
    "vitpose_plus": [
        (r"^head\.deconv(\d)", lambda found: f"keypoint_head.deconv_layers.{3 * int(found[1]) - 3}"),
        (r"^head\.batchnorm(\d)", lambda found: f"keypoint_head.deconv_layers.{3 * int(found[1]) - 2}"),
        (r"^head\.conv\.", "keypoint_head.final_layer."),
        (r"^backbone\.norm\.", "backbone.last_norm."),
    ],
}


def _write(case, folder):
    """Write a golden model with the authors' names, as they pack query, key and value."""
    arrays = {}
    for name, values in safetensors.numpy.load_file(FOLDER / case / "model.safetensors").items():
        for pattern, replacement in TIMM + AUTHORS[case]:
            name = re.sub(pattern, replacement, name)
        arrays[name] = values[None] if name.endswith("backbone.pos_embed") and values.ndim == 2 else values
    for name in [name for name in arrays if ".attn.q." in name]:
        packed = [arrays.pop(name.replace(".q.", f".{letter}.")) for letter in "qkv"]
        arrays[name.replace(".q.", ".qkv.")] = np.concatenate(packed)
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return arrays


@for_each("case", [*AUTHORS])
def test_the_model_is_the_same(case, tmp_path):
    _write(case, tmp_path)
    with pytest.raises(ValueError, match=r"config\.json"):
        keras_vit.load(tmp_path)
    shutil.copy(FOLDER / case / "config.json", tmp_path)
    model, expected = keras_vit.load(tmp_path), keras_vit.load(FOLDER / case)
    assert model.weights_source.endswith("(original names)")
    for ours, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
    assert model.encoder.config == expected.encoder.config and model._arguments == expected._arguments


def test_differences_to_dinov3_are_refused(tmp_path):
    arrays = _write("eomt_dinov2", tmp_path)
    del arrays["network.encoder.backbone.pos_embed"]  # what DINOv3 has not
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    shutil.copy(FOLDER / "eomt_dinov2" / "config.json", tmp_path)
    with pytest.raises(ValueError, match="queries/embedding: files of this layout have no such array"):
        keras_vit.load(tmp_path)


@for_each("case", ["depth_anything_relative", "vitpose_plus"])
def test_written_as_they_were(case, tmp_path):
    arrays = _write(case, tmp_path)
    shutil.copy(FOLDER / case / "config.json", tmp_path)
    model = keras_vit.load(tmp_path)
    keras_vit.save_weights(model, tmp_path / "written", layout="original")
    written = safetensors.numpy.load_file(tmp_path / "written" / "model.safetensors")
    assert written.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(written[name], values, err_msg=name)
    with pytest.raises(ValueError, match="original"):
        keras_vit.save_weights(model, tmp_path / "other", layout="huggingface")
