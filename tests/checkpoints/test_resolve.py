"""identify: the variant of a file, by the names and shapes of its arrays alone; no array is read."""

import dataclasses
import functools
import re

import file_shapes
import keras
import numpy as np
import pytest
from file_shapes import resolved
from slow_rows import slow_after

import keras_vit
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.match import make_plan
from keras_vit.compat.initial_values import build_deferred
from keras_vit.config.unseen import KEY, to_text
from keras_vit.models import build_model
from keras_vit.variants import VARIANTS

file_of = functools.cache(file_shapes.file_of)

_VITS = [name for name, row in VARIANTS.items() if row.family and row.config_class is keras_vit.ViTConfig]
_ALL = [name for name, row in VARIANTS.items() if row.config_class is keras_vit.ViTConfig]
_DEFAULT = ("DINOv2-B_14-reg4", "DINOv3-Splus_16", "CLIP-B_32", "EVA02-B_14")


def _libraries(name):
    family = VARIANTS[name].family
    in_transformers = ("beit", "clip", "dinov2", "dinov2_reg4", "dinov3", "siglip", "aimv2")
    # timm's FlexiViT has its kernel at the size of the patches, so the model of another row
    libraries = {"timm": family != "flexivit", "huggingface": family in in_transformers}
    libraries["original"] = family in ("clip", "dinov2_reg4", "dinov3", "eva02")
    return [library for library, is_there in libraries.items() if is_there]


@pytest.mark.parametrize(
    ("name", "library"),
    [
        pytest.param(name, library, marks=() if name in _DEFAULT else pytest.mark.slow)
        for name in _VITS
        for library in _libraries(name)
        if (name, library) != ("AIMv2-L_14", "timm")  # timm's has no attention pooling
    ],
)
def test_each_variant_is_found_by_its_arrays(name, library):
    config, description = file_of(name, library)
    alike = {row for row in _ALL if _outputs(row) == _outputs(name)}
    try:
        built, table, _ = resolved(description, None, {})
    except ValueError as error:  # others differ in what no array shows
        assert f"variant={name!r}" in str(error)
        built, table, _ = resolved(description, name, {})
        alike = {name}
    assert table.name in alike
    if VARIANTS[table.name].family is None:  # the arrays are those of a plain ViT, too
        return
    changed = {"name": name, "image_size": config.image_size, "dtype": config.dtype, "epsilon": config.epsilon}
    if library == "timm" and config.num_registers:
        changed["embedding.class_position"] = config.embedding.class_position
    # what no array shows and changes no output
    for field in ("class_token", "layer_scale_init", "embedding.resize"):
        changed[field] = config.field(field)
    assert built.replace(**changed) == config


def test_our_metadata_decides_between_variants_of_equal_arrays():
    """The arrays are those of CLIPs with other activations, and of a Perception Encoder with rotary positions."""
    for name in ("CLIP-B_16", "OpenCLIP-B_16"):
        for library in ("timm", "original"):
            config, description = file_of(name, library)
            with pytest.raises(ValueError, match="differ in gelu, block.rotary: pass variant="):
                resolved(description, None, {})
            ours = dataclasses.replace(description.checkpoint, metadata={KEY: to_text(config, None)})
            built, _, _ = resolved(read_evidence(ours), None, {})
            assert built == config.replace(name=built.name, dtype=built.dtype)


@pytest.mark.parametrize("name", ["ViT-Ti_16", "ViT-S_16", "ViT-B_16"])
def test_an_official_file_is_one_of_the_paper(name):
    """A DeiT, DINO or MAE of these sizes has the same arrays and another GELU; their authors publish other layouts."""
    built, table, notes = resolved(file_of(name, "official")[1], None, {})
    assert (built.name, built.gelu, table) == (name, "tanh", VARIANTS[name])
    assert notes == (f"the names and shapes of the file are those of {name}",)


@pytest.mark.parametrize(
    ("name", "heads", "stages"),
    slow_after(1, [("R+ViT-Ti_16", 3, ()), ("R26+ViT-S_32", 6, (2, 2, 2, 2)), ("R50+ViT-B_16", 12, (3, 4, 9))]),
)
def test_a_published_hybrid_is_found_for_rgb_without_arguments(name, heads, stages):
    """Its heads are timm's. `original` in a `.safetensors` file has the names of timm."""
    for library, style in (("timm", "timm"), ("official", "vit"), ("original", "timm")):
        _, description = file_shapes.file_of(name, library, image_size=384)
        for channels in (1, 3):
            given = {"channels": 1} if channels == 1 else {}
            built, _, _ = resolved(description, None, given)
            assert (built.name, built.num_heads, built.image_size) == (name, heads, (384, 384))
            assert (built.channels, built.stem.stage_sizes, built.stem.style) == (channels, stages, style)
    model, _ = build_deferred(lambda: build_model(built))
    assert make_plan(model, description).report.resized == ()


@pytest.mark.parametrize(("library", "gelu"), [("official", "tanh"), ("timm", "erf")])
def test_a_plain_file_of_another_size_is_of_no_family(library, gelu):
    _, description = file_of("ViT-Ti_16", library)
    checkpoint = description.checkpoint
    entries = {key: entry for key, entry in checkpoint.entries.items() if not re.search(r"(blocks\.|block_)11", key)}
    description = read_evidence(dataclasses.replace(checkpoint, entries=entries))
    built, table, notes = resolved(description, None, {"num_heads": 3})
    assert (built.name, built.gelu, built.image_size, table) == ("vit", gelu, (224, 224), None)
    assert "no published model has these sizes" in notes[0]


def test_fields_of_a_part_that_the_model_lacks_are_refused():
    _, description = file_of("ViT-Ti_16", "timm")
    with pytest.raises(ValueError, match="block.rotary.theta must be left out: .* got block.rotary.theta=5.0"):
        resolved(description, None, {"block.rotary.theta": 5.0})


@pytest.mark.parametrize(
    ("name", "architecture", "changes", "left_out", "expected"),
    slow_after(
        4,
        [
            ("DINOv2-S_14-reg4", "vit_small_patch14_reg4_dinov2", {"global_pool": "token"}, (), {"gelu": "erf"}),
            ("CLIP-B_32", "vit_base_patch32_clip_quickgelu_224", {"pretrained_cfg": {"tag": "openai"}}, (), {}),
            # timm leaves out the biases of queries and values; no position table shows the image size
            ("DINOv3-S_16", "vit_small_patch16_dinov3", {}, ("_bias",), {"qkv_bias": False, "image_size": (256, 256)}),
            ("EVA02-Ti_14", "eva02_tiny_patch14_336", {"global_pool": "avg"}, (), {"pooling": "gap", "num_heads": 3}),
            ("CLIP-B_32", "vit_base_patch32_clip_224", {"pretrained_cfg": {"tag": "openai"}}, (), {"gelu": "erf"}),
            ("SigLIP-B_16", "vit_base_patch16_siglip_224", {"pretrained_cfg": {"tag": "webli"}}, (), {"gelu": "erf"}),
            ("SigLIP2-B_32", "vit_base_patch32_siglip_256", {"global_pool": "map"}, (), {"gelu": "tanh"}),
            ("DINOv3-S_16", "vit_small_patch16_dinov3_qkvb", {}, (), {"num_heads": 6, "qkv_bias": True}),
            ("BEiT-B_16", "beit_base_patch16_224", {"global_pool": "avg"}, (), {"pooling": "gap", "num_heads": 12}),
        ],
    ),
)
def test_the_config_json_of_timm_names_the_variant(name, architecture, changes, left_out, expected):
    config, description = file_of(name, "timm")
    entries = {key: entry for key, entry in description.checkpoint.entries.items() if not key.endswith(left_out)}
    pretrained = {"input_size": [3, 256, 256], **changes.get("pretrained_cfg", {})}
    stated = {"architecture": architecture, **changes, "pretrained_cfg": pretrained}
    described = read_evidence(dataclasses.replace(description.checkpoint, entries=entries, config_json=stated))
    built, table, _ = resolved(described, None, {})
    assert table.name == name
    expected = {"gelu": config.gelu, "block.order": config.block.order, **expected}
    assert {field: built.field(field) for field in expected} == expected
    model, _ = build_deferred(lambda: build_model(built))
    make_plan(model, described)


def _outputs(name):
    """Everything of a variant's config that changes outputs."""
    row = VARIANTS[name]
    values = row.config(image_size=row.image_size).to_dict()
    values["gelu"] = values["gelu"] or "erf"  # of a plain ViT with the names of timm
    left_out = ("name", "image_size", "layer_scale_init", "epsilon", "include_top", "classes", "class_token", "head")
    left_out += ("pooling", "norm_position")
    unseen = ("resize", "position_init")
    values["embedding"] = {key: value for key, value in values["embedding"].items() if key not in unseen}
    return {key: value for key, value in values.items() if key not in left_out}


def test_files_of_keras_state_their_config(make_model, logits_of, tmp_path):
    model = make_model(seed=1, pooling="gap")
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "a.weights.h5")
    for name in ("a.keras", "a.weights.h5"):
        found = keras_vit.describe(tmp_path / name)
        config = found.config.replace(dtype=model.config.dtype)  # `.weights.h5` leaves it open
        assert (config, found.layout, found.unused) == (model.config, "keras", {})
    np.testing.assert_array_equal(logits_of(keras_vit.load(tmp_path / "a.weights.h5")), logits_of(model))
    keras.Model.save_weights(model, tmp_path / "b.weights.h5")  # without our metadata
    with pytest.raises(ValueError, match="b.weights.h5' must state its config; .* use create_model"):
        keras_vit.load(tmp_path / "b.weights.h5")
