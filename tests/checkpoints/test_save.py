"""save_weights: what others published comes back byte for byte, and what a layout cannot hold is refused."""

import functools
import json
import pathlib
import re

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from faults import for_each
from golden_configs import config_of
from slow_rows import slow_after

import keras_vit
from keras_vit.checkpoints import names, save
from keras_vit.models import build_model

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
REAL = "weights/ViT-Ti_16-imagenet2012-224"

# case -> layout
SOURCES = {
    "vj_token_rep_legacy": "official",
    "vj_gap_norep_legacy": "official",
    "vj_token_norep_linen": "official",
    "vj_hybrid_r22_w05_legacy": "official",
    "vj_hybrid_r1_w1_linen": "official",
    "vj_rstem_p8_legacy": "official",
    "bv_opt_target_inlined_map": "official",
    "hf_vit_cls": "huggingface",
    "hf_vit_model_pooler": "huggingface",
    "hf_deit_teacher": "huggingface",
    "hf_swin_2stage": "huggingface",
    "timm_vit_cls": "timm",
    "timm_vit_avg_fcnorm": "timm",
    "timm_ls_qknorm_reg4": "timm",
    "timm_deit3_layerscale": "timm",
    "timm_deit_distilled": "timm",
    "timm_hybrid_r11": "timm",
    "timm_rstem_p8": "timm",
    "bit_r21_w1": "official",
    "ms_swin_2stage": "microsoft",
    "ms_swin_3stage": "microsoft",
}


def load_arrays(path):
    if path.suffix == ".safetensors":
        return safetensors.numpy.load_file(path)
    with np.load(path) as file:
        return dict(file)


def check_equal(model, other, weights_of):
    mine, theirs = weights_of(model), weights_of(other)
    assert list(mine) == list(theirs)
    for path, array in mine.items():
        np.testing.assert_array_equal(array, theirs[path], err_msg=path)


@pytest.mark.parametrize("case", slow_after(10, SOURCES))
def test_golden_files_come_back_byte_for_byte(case, tmp_path):
    folder, layout = GOLDEN / case, SOURCES[case]
    case = json.loads((folder / "case.json").read_text())
    model = build_model(config_of(case))
    source = merged(folder, tmp_path) if case["name"] == "bit_r21_w1" else folder / case["params_file"]
    keras_vit.load_weights(model, source)
    path = tmp_path / f"a{source.suffix}"
    keras_vit.save_weights(model, path, layout)
    written, original = load_arrays(path), load_arrays(source)
    rules = names.LAYOUTS[model.config.network][layout]
    expected = {name: array for name, array in original.items() if not is_buffer(rules, name)}
    if layout == "official":
        expected = {official_name(rules, name): squeezed(array) for name, array in expected.items()}
    without_class_row = {"pos_embed"} & set(written) if written_has_more_rows(written, expected) else set()
    assert set(written) == set(expected)
    for name, array in expected.items():
        got = written[name][:, 1:] if name in without_class_row else written[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape), name
        assert got.tobytes() == array.tobytes(), name
    for name in without_class_row:  # DeiT-III adds positions before the class token: ours has a row of zeros
        assert not written[name][:, 0].any()


def merged(folder, tmp_path):
    parts = [load_arrays(path) for path in sorted(folder.glob("params.part*.npz"))]
    path = tmp_path / "merged.npz"
    np.savez(path, **{name: array for part in parts for name, array in part.items()})
    return path


def is_buffer(rules, name):
    return rules.ignored is not None and re.search(rules.ignored, name) is not None


def squeezed(array):
    """Vectors of GroupNorm may be stored as (1, 1, 1, channels)."""
    return array[0, 0, 0] if array.ndim == 4 and array.shape[:3] == (1, 1, 1) else array


def official_name(rules, name):
    name = names.fold(rules, name)
    return "Transformer/posembed_input/pos_embedding" if name.endswith("pos_embedding") else name


def written_has_more_rows(written, expected):
    return "pos_embed" in written and written["pos_embed"].shape[1] == expected["pos_embed"].shape[1] + 1


def test_the_names_of_a_published_file_need_no_folding(tmp_path, make_model):
    keras_vit.save_weights(make_model(representation_size=4), tmp_path / "a.npz")
    with (
        np.load(GOLDEN / "vj_token_rep_legacy" / "params.npz") as published,
        np.load(tmp_path / "a.npz") as ours,
    ):
        assert sorted(ours.files) == sorted(published.files)


@pytest.mark.parametrize(
    ("kind", "layout", "changes"),
    slow_after(
        2,
        [
            ("vit", "official", {"representation_size": 4}),
            ("vit", "huggingface", {"qkv_bias": False, "image_size": (24, 8)}),
            ("hybrid", "official", {"representation_size": 4}),
            ("distilled", "timm", {"num_registers": 2}),
            ("swin", "timm", {"depths": (1, 1, 1), "num_heads": (1, 2, 4)}),
            ("bit", "official", {"image_size": (40, 24)}),
            ("distilled", "huggingface", {"image_size": (8, 16)}),
            ("vit", "official", {"pooling": "map"}),
            ("vit", "official", {"pooling": "gap", "class_token": True, "position_embedding": "sincos2d"}),
            ("vit", "official", {"qkv_bias": False, "image_size": (8, 24)}),
            ("vit", "timm", {"pooling": "map", "num_registers": 2, "qk_norm": True, "layer_scale_init": 0.1}),
            ("vit", "timm", {"pooling": "first", "position_embedding": "none"}),
            ("vit", "timm", {"pooling": "gap", "norm_position": "after_pooling", "image_size": (8, 24)}),
            ("vit", "huggingface", {}),
            ("root", "official", {}),
            ("distilled", "timm", {"layer_scale_init": 0.1}),
            ("swin", "huggingface", {"image_size": (32, 64)}),
            ("swin", "microsoft", {"window_size": 7, "image_size": 40}),  # smaller windows in the second stage
            ("vit", "official", {"pooling": "unpooled", "include_top": False}),
            ("vit", "huggingface", {"include_top": False, "representation_size": 8}),
            ("root", "timm", {"include_top": False}),
            ("distilled", "huggingface", {"include_top": False}),
            ("swin", "huggingface", {"include_top": False, "qkv_bias": False}),
            ("swin", "microsoft", {"include_top": False}),
            ("swin", "timm", {"include_top": False}),
            ("bit", "official", {"include_top": False}),
            ("hybrid", "timm", {"image_size": (32, 48)}),
        ],
    ),
)
def test_read_back_to_equal_logits(make_kind, weights_of, logits_of, tmp_path, kind, layout, changes):
    source, model = make_kind(kind, seed=1, **changes), make_kind(kind, seed=2, **changes)
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    keras_vit.save_weights(source, path, layout)
    report = keras_vit.load_weights(model, path)
    assert report.source == f"{path} ({layout} names)"
    assert (dict(report.unused), report.reinitialised, report.resized) == ({}, (), ())
    if layout != "timm" or not changes.get("num_registers"):  # these have the position in the class token
        check_equal(model, source, weights_of)
    np.testing.assert_allclose(logits_of(model), logits_of(source), atol=1e-6)


def test_half_precision_comes_back(make_model, weights_of, tmp_path):
    for dtype in ("float16", "bfloat16"):
        source = make_model(seed=1, dtype=dtype)
        for layout, name in (("official", "a.npz"), ("timm", "a.safetensors")):
            keras_vit.save_weights(source, tmp_path / name, layout)
            model = make_model(seed=2, dtype=dtype)
            keras_vit.load_weights(model, tmp_path / name)
            check_equal(model, source, weights_of)


@for_each(
    ("kind", "layout", "changes", "words"),
    [
        ("vit", "official", {"num_registers": 2}, "none for .'class_token/registers'"),
        ("vit", "official", {"qk_norm": True}, "none for .'block_00/attention/query_norm/gamma'"),
        ("vit", "official", {"layer_scale_init": 0.1}, "none for .'block_00/layer_scale1/gamma'"),
        (
            "vit",
            "official",
            {"pooling": "gap", "norm_position": "after_pooling"},
            "needs norm_position='before_pooling'",
        ),
        ("vit", "official", {"position_placement": "every"}, "needs position_placement='stem'; the model has 'every'"),
        ("vit", "timm", {"position_placement": "shared"}, "needs position_placement='stem'; the model has 'shared'"),
        ("vit", "huggingface", {"position_placement": "shared"}, "needs position_placement='stem'"),
        (
            "vit",
            "timm",
            {"position_embedding": "relative", "position_placement": "every"},
            "needs position_placement='stem'",
        ),
        ("vit", "official", {"position_embedding": "learned_2d"}, "none for .'position_embs/columns'"),
        ("vit", "timm", {"position_embedding": "learned_2d"}, "none for .'position_embs/columns'"),
        ("vit", "huggingface", {"position_embedding": "learned_2d"}, "needs position_embedding='learned'"),
        (
            "vit",
            "huggingface",
            {"pooling": "gap", "class_token": True},
            "needs pooling='token'; the model has 'gap'",
        ),
        ("vit", "huggingface", {"block": {"gated": True}}, "needs block.gated=False; the model has True"),
        ("vit", "huggingface", {"embedding": {"pre_norm": True}}, "needs embedding.pre_norm=False; the model has True"),
        ("vit", "official", {"embedding": {"pre_norm": True}}, "none for .'pre_norm/gamma'"),
        ("vit", "official", {"block": {"norm": "rms"}}, "none for .'block_00/norm1/scale'"),
        ("vit", "huggingface", {"num_registers": 2}, "needs num_registers=0; the model has 2"),
        ("vit", "huggingface", {"position_embedding": "sincos2d"}, "needs position_embedding='learned'"),
        ("vit", "huggingface", {"representation_size": 4}, "needs representation_size=None; the model has 4"),
        ("hybrid", "huggingface", {}, "none for .'root_conv/kernel'"),
        ("axial", "official", {}, "none for .'block_00/"),
        ("distilled", "official", {}, "needs distilled=False; the model has True"),
        ("distilled", "huggingface", {"num_registers": 1}, "needs num_registers=0; the model has 1"),
        ("swin", "huggingface", {"window_size": 7}, "got window_size=7 and a map of 4 x 4 in stage 2"),
    ],
)
def test_what_a_layout_cannot_hold(make_kind, tmp_path, kind, layout, changes, words):
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    with pytest.raises(ValueError, match=f"layout '{layout}'.*({words})"):
        keras_vit.save_weights(make_kind(kind, **changes), path, layout)
    assert list(tmp_path.iterdir()) == []


def test_a_stem_of_the_users_own_has_no_names(tmp_path, user_hybrid):
    for layout, name in (("official", "a.npz"), ("timm", "a.safetensors")):
        with pytest.raises(ValueError, match="must have names for every variable; it has none for .'backbone/head/ker"):
            keras_vit.save_weights(user_hybrid(1), tmp_path / name, layout)


def test_models_that_no_other_code_reads(make_kind, tmp_path):
    with pytest.raises(ValueError, match="no other library reads weights of tiny"):
        keras_vit.save_weights(make_kind("axial_resnet"), tmp_path / "a.npz")


def test_wrong_suffix_and_layout(make_kind, tmp_path):
    model = make_kind("vit")
    with pytest.raises(ValueError, match=r"path must end in \.npz for layout='official'; got '.*a\.safetensors'"):
        keras_vit.save_weights(model, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"path must end in \.safetensors for layout='timm'; got '.*a'"):
        keras_vit.save_weights(model, tmp_path / "a", "timm")
    with pytest.raises(
        ValueError, match="layout must be one of 'official', 'original', 'timm', 'huggingface'; got layout='flax'"
    ):
        keras_vit.save_weights(model, tmp_path / "a.npz", "flax")
    swin = make_kind("swin")
    with pytest.raises(
        ValueError, match="one of 'huggingface', 'microsoft', 'timm', 'original'; got layout='official'"
    ):
        keras_vit.save_weights(swin, tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"path must end in \.safetensors for layout='microsoft'"):
        keras_vit.save_weights(swin, tmp_path / "a.npz", "microsoft")
    with pytest.raises(ValueError, match="layout must be one of 'official', 'original'; got layout='timm'"):
        keras_vit.save_weights(make_kind("bit"), tmp_path / "a.safetensors", "timm")


@pytest.mark.parametrize(("name", "layout"), [("a.npz", "official"), ("a.safetensors", "timm"), ("a", "huggingface")])
def test_a_failed_write_leaves_the_old_file_alone(make_model, tmp_path, monkeypatch, name, layout):
    keras_vit.save_weights(make_model(seed=1), tmp_path / name, layout)
    before = contents(tmp_path)

    def write_half(*args):
        next(arg for arg in args if isinstance(arg, pathlib.Path)).write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save.safetensors.numpy, "save_file", write_half)
    monkeypatch.setattr(save, "_write_npz", write_half)
    with pytest.raises(OSError, match="No space left"):
        keras_vit.save_weights(make_model(seed=2), tmp_path / name, layout)
    assert contents(tmp_path) == before
    with pytest.raises(OSError, match="No space left"):
        keras_vit.save_weights(make_model(seed=2), tmp_path / f"new-{name}", layout)
    assert contents(tmp_path) == before


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_existing_file_is_replaced(make_model, weights_of, tmp_path):
    for seed in (1, 2):
        keras_vit.save_weights(make_model(seed=seed), tmp_path / "a.npz")
    model = make_model()
    keras_vit.load_weights(model, tmp_path / "a.npz")
    check_equal(model, make_model(seed=2), weights_of)
    keras_vit.save_weights(model, tmp_path / "a.npz")  # onto the file that was just read
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_any_reader_of_npz_reads_ours(make_model, tmp_path):
    model = make_model()
    keras_vit.save_weights(model, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["head/kernel"], model.get_layer("head").kernel.numpy())


@functools.cache
def real_model(path):
    return keras_vit.ViT_Ti16(weights=path)


@pytest.mark.parametrize(
    ("source", "layout"), [(f"{REAL}.npz", "official"), (f"{REAL}.huggingface.safetensors", "huggingface")]
)
def test_real_files_come_back_byte_for_byte(real_data, tmp_path, source, layout):
    model = real_model(real_data / source)
    path = tmp_path / f"a{pathlib.Path(source).suffix}"
    keras_vit.save_weights(model, path, layout)
    written, original = load_arrays(path), load_arrays(real_data / source)
    assert set(written) == set(original)
    for name, array in original.items():
        assert written[name].shape == array.shape and written[name].tobytes() == array.tobytes(), name


def test_real_files_in_both_layouts_hold_the_same(real_data, weights_of):
    models = [real_model(real_data / f"{REAL}{suffix}") for suffix in (".npz", ".huggingface.safetensors")]
    check_equal(*models, weights_of)


def test_lora_is_merged_into_the_kernels(make_model, tmp_path):
    model = make_model(seed=1)
    for dense in (model.get_layer("block_00").attention.qkv, model.get_layer("head")):
        dense.enable_lora(2)
        dense.lora_kernel_a.assign(np.random.default_rng(0).normal(size=dense.lora_kernel_a.shape))
        dense.lora_kernel_b.assign(np.random.default_rng(1).normal(size=dense.lora_kernel_b.shape))
    keras_vit.save_weights(model, tmp_path / "a.npz")
    again = make_model(seed=2)
    keras_vit.load_weights(again, tmp_path / "a.npz")
    images = np.random.default_rng(0).normal(size=(2, *model.config.image_size, 3)).astype("float32")
    np.testing.assert_allclose(again(images), model(images), atol=1e-5)


def test_quantised_models_are_refused(make_model, tmp_path):
    model = make_model()
    model.get_layer("head").quantize("int8")
    with pytest.raises(
        ValueError, match="must not be quantised for .* float weights .save it before quantize.; layers of .* are"
    ):
        keras_vit.save_weights(model, tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_timm_files_of_models_with_registers_have_positions_of_patches_alone(make_model, logits_of, tmp_path, pooling):
    model = make_model(seed=1, pooling=pooling, num_registers=3)
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert arrays["pos_embed"].shape[1] == np.prod(model.config.grid_size)
    if pooling == "token":  # its position is part of the class token
        own = model.get_layer("class_token").class_token + model.get_layer("position_embs").embedding[:, :1]
        np.testing.assert_array_equal(arrays["cls_token"], own)
    again = make_model(seed=2, pooling=pooling, num_registers=3)
    keras_vit.load_weights(again, tmp_path / "a.safetensors")
    np.testing.assert_allclose(logits_of(again), logits_of(model), atol=1e-6)


def test_an_assumed_preprocessing_is_told(make_model, tmp_path):
    model = make_model()
    keras_vit.save_weights(model, tmp_path / "stated", "huggingface")  # without a word
    model.assume_preprocessing()
    with pytest.warns(UserWarning, match="preprocessor_config.json states .* is assumed"):
        keras_vit.save_weights(model, tmp_path / "assumed", "huggingface")
