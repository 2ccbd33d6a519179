"""Prefixes of array names, such as `module.`, around the names of every layout."""

import dataclasses
import pathlib
import time

import numpy as np
import pytest
import safetensors.numpy
from official_files import check_equal

import keras_vit
from keras_vit.checkpoints.entries import Checkpoint, Entry
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.readers import open_checkpoint

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
FILES = (  # one of every layout
    *("aimv2_hf/model.safetensors", "beit_hf_cls/model.safetensors", "dinov2_timm_swiglu_avg/params.safetensors"),
    *("bit_r21_w1/params.part0.npz", "bv_bf16_img_subtree_map/params.npz", "siglip2_naflex_bv/params.npz"),
    *("classifiers/clip", "classifiers/siglip", "classifiers/siglip2", "clip_hf_quickgelu", "siglip2_naflex_hf"),
    *("clip_openclip_gelu", "dinov2_hf_cls", "dinov3_hf_rect", "dinov2_hf_reg4_up/params_original.safetensors"),
    *("dinov3_orig/params.safetensors", "hf_swin_2stage", "ms_swin_2stage/params.safetensors", "sam_hf"),
    *("sam_timm/params.safetensors", "naflex_timm_par/params.safetensors"),
)
PREFIXES = ("_orig_mod.", "encoder.", "a/student.backbone.")


def renamed(checkpoint, name_of):
    entries = {name_of(name): entry for name, entry in checkpoint.entries.items()}
    entries = {name: dataclasses.replace(entry, name=name) for name, entry in entries.items()}
    return dataclasses.replace(checkpoint, entries=entries)


def test_files_of_every_layout():
    layouts = set()
    for name in FILES:
        checkpoint = open_checkpoint(GOLDEN / name)
        expected = read_evidence(checkpoint)
        layouts.add(id(expected.layout))
        assert not any("prefix" in note for note in expected.notes), name
        for prefix in PREFIXES:
            got = read_evidence(renamed(checkpoint, lambda array, prefix=prefix: prefix + array))
            assert got.layout is expected.layout, (name, prefix)
            assert (got.entries.keys(), got.stated) == (expected.entries.keys(), expected.stated)
            assert f"the prefix {prefix!r} of its array names is left out" in got.notes
    assert len(layouts) == len(FILES)


def test_models_are_loaded_without_the_prefix(make_model, weights_of, tmp_path):
    source, path = make_model(seed=1), tmp_path / "a.safetensors"
    keras_vit.save_weights(source, path, "timm")
    arrays = safetensors.numpy.load_file(path)
    for outside in ((), ("head.weight", "head.bias")):
        wrapped = {name if name in outside else f"module.{name}": array for name, array in arrays.items()}
        safetensors.numpy.save_file(wrapped, path)
        model = make_model(seed=2)
        report = keras_vit.load_weights(model, path)
        assert "the prefix 'module.' of its array names is left out" in report.notes
        check_equal(weights_of(model), weights_of(source))
        assert keras_vit.load(path, num_heads=2, image_size=16).config.classes == 3
    both = {f"{owner}.{name}": array for owner in ("student", "teacher") for name, array in arrays.items()}
    safetensors.numpy.save_file(both, path)
    with pytest.raises(ValueError, match=r"\+ extra teacher\."):
        keras_vit.load_weights(make_model(), path)


def test_names_of_many_parts_are_refused_at_once():
    name = "a." * 200_000
    entries = {name: Entry(name, (1,), "F32", lambda: np.zeros(1))}
    start = time.process_time()
    with pytest.raises(ValueError, match="must hold the weights of a model of this package"):
        read_evidence(Checkpoint(pathlib.Path("a.safetensors"), "safetensors", entries, {}))
    assert time.process_time() - start < 5
