"""All published ViT and Swin files of timm 1.0.31, by names, shapes and config.json: what no array shows is right.

`tests/timm_survey.json.gz` comes from timm itself, whose models were built on torch's meta device: for each published
name the names and shapes of its arrays, its config.json as on the hub, and the number of heads, the activation and the
epsilon of its first block. timm's Swins have these of no block; they have the epsilon of `torch.nn.LayerNorm`.
"""

import functools
import gzip
import json
import pathlib
import re

import numpy as np
import pytest

from keras_vit.checkpoints.entries import Checkpoint, Entry
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.resolve import resolve

_ACTIVATIONS = {"GELU:none": "erf", "GELUTanh": "tanh", "QuickGELU": "quick"}
_IDENTIFIED = 477  # of 485
# 24 heads; other giants have 16
_GIANTS = ["vit_giant_patch14_dinov2.lvd142m", "vit_giant_patch14_reg4_dinov2.lvd142m"]
# other widths than those of most files
_OTHERS = ("vit_giant_patch14_224", "vit_base_patch16_gap_224", "vit_giant_patch14_dinov2", "vit_tiny_patch16_224")


@functools.cache
def _survey():
    return json.loads(gzip.decompress(pathlib.Path(__file__).parents[1].joinpath("timm_survey.json.gz").read_bytes()))


def _described(row, **changes):
    shapes = _survey()["arrays"][row["arrays"]]
    entries = {
        key: Entry(key, tuple(shape), "F32", functools.partial(np.zeros, shape)) for key, shape in shapes.items()
    }
    config = {**row["config"], **changes}
    return read_evidence(Checkpoint(pathlib.Path("model.safetensors"), "safetensors", entries, {}, config))


def _config(description):
    """Return the config of the model that `load` would build, None if it refuses the file."""
    return resolve(description, None, {}).config


def _check(names, **changes):
    """Compare the files that are identified with timm; return how many they are.

    Args:
        names: names of the files.
        **changes: changes of each config.json.
    """
    count = 0
    for name in names:
        row = _survey()["models"][name]
        try:
            config = _config(_described(row, **changes))
        except ValueError:
            continue
        count += 1
        if config.network == "swin":
            found = [config.num_heads, config.gelu, config.epsilon]
            shapes = _survey()["arrays"][row["arrays"]]
            tables = [shapes[f"layers.{stage}.blocks.0.attn.relative_position_bias_table"] for stage in range(4)]
            expected = [tuple(shape[1] for shape in tables), "erf", 1e-5]
        else:
            found = [config.num_heads, "SiLU" if config.block.gated else config.gelu, config.epsilon]
            expected = [row["heads"], _ACTIVATIONS.get(row["act"], row["act"]), row["eps"]]
            expected = [y if x is None else x for x, y in zip(expected, found, strict=True)]  # None: not stated
        assert found == expected, name
    return count


def test_a_sample_of_the_files_that_are_identified_agrees_with_timm():
    assert _check([*_GIANTS, *list(_survey()["models"])[::40]]) >= 10


@pytest.mark.slow
def test_every_file_that_is_identified_agrees_with_timm():
    assert _check(_survey()["models"]) >= _IDENTIFIED
    assert _check(_survey()["models"], pretrained_cfg={"input_size": [3, 224, 224]}) >= _IDENTIFIED  # without the tag


def test_the_heads_of_another_architecture_are_not_those_of_the_file():
    """UNI2-h is called `vit_giant_patch14_224` and has another width: without `model_args`, its heads are asked for."""
    rows = _survey()["models"]
    for name in [_GIANTS[1], "deit3_small_patch16_224.fb_in1k"]:
        for architecture in _OTHERS:
            try:
                config = _config(_described(rows[name], architecture=architecture))
            except ValueError as error:
                assert re.search("pass (num_heads|variant)=", str(error)), error
            else:
                assert config.num_heads == rows[name]["heads"], (name, architecture)
    entries = dict(_described(rows[_GIANTS[1]]).checkpoint.entries)
    entries = {key: entry for key, entry in entries.items() if int((re.findall(r"blocks\.(\d+)", key) or "0")[0]) < 24}
    stated = {**rows[_GIANTS[1]]["config"], "architecture": "vit_giant_patch14_224"}
    uni = read_evidence(Checkpoint(pathlib.Path("model.safetensors"), "safetensors", entries, {}, stated))
    with pytest.raises(ValueError, match="do not show num_heads: pass num_heads="):
        resolve(uni, None, {})
    assert resolve(uni, None, {"num_heads": 24}).config.num_heads == 24


def test_the_heads_of_timm_hold_for_its_exact_architecture():
    """timm's vit_base_patch16_gap_224 has 16 heads, its other models of this width 12."""
    row = _survey()["models"]["vit_base_patch16_siglip_gap_224.webli"]
    assert _config(_described(row)).num_heads == 12
    assert _config(_described(row, architecture="vit_base_patch16_gap_224")).num_heads == 16
    assert _config(_described(row, model_args={"num_heads": 8})).num_heads == 8
