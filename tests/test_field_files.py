"""Published files of medicine and of the Earth: copies are opened as the table says, and others are refused."""

import json

import numpy as np
import pytest
import safetensors.numpy
from faults import for_each

import keras_vit
from benchmarks import field_files


@pytest.fixture(scope="module")
def arrays(workplace, tmp_path_factory):
    """The arrays of a small ViT with the names of timm."""
    path = tmp_path_factory.mktemp("field") / "model.safetensors"
    keras_vit.save_weights(workplace.small_model(), path, layout="timm")
    return safetensors.numpy.load_file(path)


def ones(*shape):
    return np.ones(shape, "float32")


# what a file has instead of `patch_embed.proj`, or besides it; a part of the refusal
OTHERS = {
    "CONCH": ({"visual.attn_pool_contrast.query": ones(1, 16), "visual.ln_contrast.weight": ones(16)}, "attn_pool"),
    "Prithvi": ({"patch_embed.proj.weight": ones(16, 6, 1, 8, 8)}, "must show patch_size"),
    "Clay and DOFA": ({"patch_embed.weight_generator.weight_tokens": ones(128, 128)}, "must hold the weights"),
    "SatMAE": ({f"patch_embed.{group}.proj.weight": ones(16, 3, 8, 8) for group in range(3)}, "must hold the weights"),
}


@for_each("name", OTHERS)
def test_files_with_other_parts_are_refused(arrays, tmp_path, name):
    others, message = OTHERS[name]
    kept = {key: array for key, array in arrays.items() if name == "CONCH" or not key.startswith("patch_embed.")}
    prefix = "visual.trunk." if name == "CONCH" else ""
    safetensors.numpy.save_file(
        {f"{prefix}{key}": array for key, array in kept.items()} | others, tmp_path / "a.safetensors"
    )
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path / "a.safetensors", num_heads=2)


def test_each_row_has_a_call_or_a_reason():
    rows = field_files.read()
    assert len(rows) == 26
    for row in rows:
        assert row["open"] == "-" or row["open"].startswith("keras_vit.load("), row
        assert row["states"] and row["licence"] and row["gated"], row
        assert not row["copy"] or row["open"] != "-" and json.loads(row["copy"]), row


@pytest.mark.slow
def test_copies_compute_what_the_code_of_the_authors_computes():
    for name in field_files.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the expected outputs, is not installed")
    found = {row["name"]: field_files.compared(row) for row in field_files.read() if row["copy"]}
    assert {name: text for name, text in found.items() if not text[0].isdigit() or float(text) > 1e-5} == {}
