"""DPT: the encoders that it takes, the sizes of its outputs, its heads, and files that it refuses."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_vit

GOLDEN = pathlib.Path(__file__).parents[1] / "golden_tasks"
SIZES = {"name": "small", "hidden_dim": 16, "num_layers": 3, "num_heads": 2, "mlp_dim": 24, "include_top": False}
NECK = {"neck_widths": (4, 6), "fusion_width": 8}
PLAIN = {"neck_widths": (4, 6, 8, 10), "fusion_width": 8}


def plain(**changes):
    return keras_vit.VisionTransformer(
        keras_vit.ViTConfig(**{**SIZES, "num_layers": 4, "patch_size": 8, "image_size": (24, 40)} | changes)
    )


def hybrid(stages=(1, 1, 1), size=(48, 80)):
    stem = keras_vit.ResNetConfig(stage_sizes=stages, width_factor=0.5)
    return keras_vit.VisionTransformer(keras_vit.ViTConfig(**SIZES, patch_size=1, image_size=size, stem=stem))


def test_the_first_two_levels_of_a_hybrid_are_its_stages(tmp_path):
    encoder = hybrid()
    model = keras_vit.DPT(encoder, blocks=(1, 2), **NECK)
    assert model.output_shape == (None, 48, 80)
    assert model.get_layer("level_0_conv").input is encoder.get_layer("stage_1").output
    assert model.get_layer("level_1_conv").input is encoder.get_layer("stage_2").output
    assert not [layer.name for layer in model.layers if layer.name in ("level_0_readout", "level_1_readout")]
    model.save(tmp_path / "model.keras")
    again, images = keras.models.load_model(tmp_path / "model.keras"), np.ones((1, 48, 80, 3), "float32")
    np.testing.assert_array_equal(again(images), model(images))


def test_without_the_same_size_each_map_is_doubled():
    model = keras_vit.DPT(plain(), blocks=(0, 1, 2, 3), same_size=False, **PLAIN)
    assert model.output_shape == (None, 64, 96)  # 3 x 5 patches, 2 x 3 cells of the deepest level, times 32


@pytest.mark.parametrize(
    ("encoder", "arguments", "message"),
    [
        (plain, {"blocks": (0, 1, 2), **PLAIN}, "blocks must be 4 indices in ascending order, below 4"),
        (plain, {"blocks": (0, 1, 3, 2), **PLAIN}, "blocks must be 4 indices"),
        (plain, {"blocks": (0, 1, 2, 4), **PLAIN}, "blocks must be 4 indices"),
        (plain, {"blocks": (0, 1, 2, 3), **NECK}, r"neck_widths 4 integers; got .*neck_widths=\(4, 6\)"),
        (hybrid, {"blocks": (0, 1, 2, 3), **PLAIN}, "blocks must be 2 indices"),
        (lambda: hybrid((1, 1)), {"blocks": (1, 2), **NECK}, "no stem, or a ResNet of 3 stages; got stem=ResNetConfig"),
        (lambda: plain(norm_position="none"), {"blocks": (0, 1, 2, 3), **PLAIN}, "normalised needs an encoder"),
    ],
)
def test_what_does_not_fit_the_encoder_is_refused(encoder, arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.DPT(encoder(), **arguments)


def test_the_unused_norm_of_the_encoder_is_kept(tmp_path):
    used, unused = (keras_vit.DPT(plain(), (0, 1, 2, 3), normalised=flag, **PLAIN) for flag in (True, False))
    assert used.count_params() == unused.count_params()
    images = np.random.default_rng(0).normal(size=(1, 24, 40, 3)).astype("float32")
    before = keras.ops.convert_to_numpy(unused(images))
    unused.encoder.get_layer("encoder_norm").gamma.assign(np.full(16, 3.0))
    np.testing.assert_array_equal(unused(images), before)
    unused.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.encoder.get_layer("encoder_norm").gamma, np.full(16, 3.0))


def test_the_auxiliary_head_reads_the_same_map():
    arguments = {"classes": 5, "blocks": (0, 1, 2, 3), "dropout_rate": 0.0, **PLAIN}
    model = keras_vit.DPTSegmentation(plain(), **arguments)
    shapes = {key: output.shape for key, output in model.output.items()}
    assert shapes == {"logits": (None, 64, 96, 5), "auxiliary_logits": (None, 32, 48, 5)}
    assert model.get_layer("auxiliary_head").input is model.get_layer("segmentation_head").input
    assert set(keras_vit.DPTSegmentation(plain(), **arguments, auxiliary=False).output) == {"logits"}


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        (
            "dpt_depth",
            {"reassemble_factors": [1, 1, 1, 0.5]},
            r"reassemble_factors in config.json must be \[4, 2, 1, 0",
        ),
        ("dpt_depth", {"hidden_act": "gelu_new"}, "hidden_act in config.json must be 'gelu'"),
        ("dpt_depth", {"backbone": "resnet50"}, "backbone in config.json must be None or False"),
        ("dpt_dinov2", {"backbone_config": {"model_type": "swinv2"}}, "must be 'dinov2' for .*; got 'swinv2'"),
    ],
)
def test_files_that_state_another_architecture_are_refused(tmp_path, case, change, message):
    folder = shutil.copytree(GOLDEN / case, tmp_path / case)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        keras_vit.describe(folder)
