"""save_weights: what others published comes back byte for byte, and what a layout cannot hold is refused."""

import json
import pathlib

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints import names, save

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
GOLDEN_SIZES = {
    "name": "golden",
    "image_size": 32,
    "patch_size": 8,
    "hidden_dim": 48,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 96,
    "classes": 6,
}
REAL = "weights/ViT-Ti_16-imagenet2012-224"

# case -> (file, layout, what its config has beside GOLDEN_SIZES)
SOURCES = {
    "vj_token_rep_legacy": ("params.npz", "official", {"representation_size": 48}),
    "vj_gap_norep_legacy": ("params.npz", "official", {"classifier": "gap"}),
    "vj_token_norep_linen": ("params.npz", "official", {}),
    "bv_opt_target_inlined_map": ("params.npz", "official", {"classifier": "map"}),
    "hf_vit_cls": ("model.safetensors", "huggingface", {}),
    "hf_vit_model_pooler": (
        "model.safetensors",
        "huggingface",
        {"include_top": False, "representation_size": 48},
    ),
    "timm_vit_cls": ("params.safetensors", "timm", {}),
    "timm_vit_avg_fcnorm": (
        "params.safetensors",
        "timm",
        {"classifier": "gap", "norm_position": "after_pooling"},
    ),
    "timm_ls_qknorm_reg4": (
        "params.safetensors",
        "timm",
        {"num_registers": 4, "qk_norm": True, "layer_scale_init": 1e-4},
    ),
    "timm_deit3_layerscale": ("params.safetensors", "timm", {"layer_scale_init": 1e-4}),
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


@pytest.mark.parametrize("case", SOURCES)
def test_golden_files_come_back_byte_for_byte(case, tmp_path):
    file, layout, changes = SOURCES[case]
    source = GOLDEN / case / file
    model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**{**GOLDEN_SIZES, **describe(case), **changes}))
    keras_vit.load_weights(model, source)
    path = tmp_path / f"a{source.suffix}"
    keras_vit.save_weights(model, path, layout)
    written, original = load_arrays(path), load_arrays(source)
    expected = {
        official_name(name) if layout == "official" else name: array for name, array in original.items()
    }
    without_class_row = {"pos_embed"} & set(written) if written_has_more_rows(written, expected) else set()
    assert set(written) == set(expected)
    for name, array in expected.items():
        got = written[name][:, 1:] if name in without_class_row else written[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape), name
        assert got.tobytes() == array.tobytes(), name
    for name in without_class_row:  # DeiT-III adds positions before the class token: ours has a row of zeros
        assert not written[name][:, 0].any()


def describe(case):
    case = json.loads((GOLDEN / case / "case.json").read_text())
    config = case["config"]
    heads = config.get("num_heads") or config.get("num_attention_heads") or config["transformer"]["num_heads"]
    return {"num_heads": heads, "classes": case["num_classes"] or 1}


def official_name(name):
    name = names.fold("official", name)
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
    ("layout", "changes"),
    [
        ("official", {"representation_size": 4}),
        ("official", {"classifier": "map"}),
        ("official", {"classifier": "gap", "class_token": True, "position_embedding": "sincos2d"}),
        ("official", {"classifier": "unpooled", "include_top": False}),
        ("official", {"qkv_bias": False, "image_size": (8, 24)}),
        ("timm", {"classifier": "map", "num_registers": 2, "qk_norm": True, "layer_scale_init": 0.1}),
        ("timm", {"classifier": "first", "position_embedding": "none"}),
        ("timm", {"classifier": "gap", "norm_position": "after_pooling", "image_size": (8, 24)}),
        ("huggingface", {}),
        ("huggingface", {"include_top": False, "representation_size": 8}),
        ("huggingface", {"qkv_bias": False, "image_size": (24, 8)}),
    ],
)
def test_read_back_to_equal_logits(make_model, weights_of, tmp_path, layout, changes):
    source, model = make_model(seed=1, **changes), make_model(seed=2, **changes)
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    keras_vit.save_weights(source, path, layout)
    report = keras_vit.load_weights(model, path)
    assert report.source == f"{path} ({layout} names)"
    assert (report.unused, report.reinitialised, report.resized) == ((), (), ())
    check_equal(model, source, weights_of)
    images = np.random.default_rng(0).normal(size=(2, *source.config.image_size, 3)).astype("float32")
    np.testing.assert_array_equal(model(images), source(images))


def test_half_precision_comes_back(make_model, weights_of, tmp_path):
    for dtype in ("float16", "bfloat16"):
        source = make_model(seed=1, dtype=dtype)
        for layout, name in (("official", "a.npz"), ("timm", "a.safetensors")):
            keras_vit.save_weights(source, tmp_path / name, layout)
            model = make_model(seed=2, dtype=dtype)
            keras_vit.load_weights(model, tmp_path / name)
            check_equal(model, source, weights_of)


@pytest.mark.parametrize(
    ("layout", "changes", "words"),
    [
        ("official", {"num_registers": 2}, "none for .'class_token/registers'"),
        ("official", {"qk_norm": True}, "none for .'block_00/attention/query_norm/gamma'"),
        ("official", {"layer_scale_init": 0.1}, "none for .'block_00/layer_scale1/gamma'"),
        (
            "official",
            {"classifier": "gap", "norm_position": "after_pooling"},
            "needs norm_position='before_pooling'",
        ),
        ("huggingface", {"classifier": "gap"}, "needs classifier='token'; the model has 'gap'"),
        ("huggingface", {"num_registers": 2}, "none for .'class_token/registers'"),
        ("huggingface", {"position_embedding": "sincos2d"}, "needs position_embedding='learned'"),
        ("huggingface", {"representation_size": 4}, "needs representation_size=None; the model has 4"),
    ],
)
def test_what_a_layout_cannot_hold(make_model, tmp_path, layout, changes, words):
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    with pytest.raises(ValueError, match=f"layout '{layout}'.*({words})"):
        keras_vit.save_weights(make_model(**changes), path, layout)
    assert list(tmp_path.iterdir()) == []


def test_wrong_suffix_and_layout(make_model, tmp_path):
    with pytest.raises(
        ValueError, match=r"path must end in \.npz for layout='official'; got '.*a\.safetensors'"
    ):
        keras_vit.save_weights(make_model(), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"path must end in \.safetensors for layout='timm'; got '.*a'"):
        keras_vit.save_weights(make_model(), tmp_path / "a", "timm")
    with pytest.raises(
        ValueError, match="layout must be one of 'official', 'huggingface', 'timm'; got layout='flax'"
    ):
        keras_vit.save_weights(make_model(), tmp_path / "a.npz", "flax")


def test_a_huggingface_folder(make_model, weights_of, tmp_path, monkeypatch):
    source = make_model(seed=1, gelu="erf", epsilon=1e-5)
    source.labels = ("ant", "bee", "cat")
    source.preprocessing = keras_vit.Preprocessing(
        size=18, crop=16, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
    )
    folder = tmp_path / "new" / "folder"
    keras_vit.save_weights(source, folder, "huggingface")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    config = json.loads((folder / "config.json").read_text())
    expected = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "image_size": 16,
        "patch_size": 4,
        "num_channels": 3,
        "qkv_bias": True,
        "id2label": {"0": "ant", "1": "bee", "2": "cat"},
        "label2id": {"ant": 0, "bee": 1, "cat": 2},
    }
    assert config == expected
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert processor["size"] == {"shortest_edge": 18} and processor["crop_size"] == {
        "height": 16,
        "width": 16,
    }
    assert (processor["resample"], processor["do_center_crop"], processor["do_normalize"]) == (3, True, True)
    assert (processor["image_mean"], processor["image_std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {
            "format": "pt",
            "position_grid": "[4, 4]",
        }  # transformers asks for the format
    sizes = {"patch_size": 4, "hidden_dim": 8, "num_layers": 2, "num_heads": 2, "mlp_dim": 12}
    monkeypatch.setitem(keras_vit.zoo.VARIANTS, "tiny", keras_vit.zoo.Variant("tiny", sizes, "this test"))
    model = keras_vit.create_model("tiny", weights=folder, image_size=16, classes=3)
    check_equal(model, source, weights_of)
    assert (model.config.gelu, model.config.epsilon) == ("erf", 1e-5)
    assert (model.labels, model.preprocessing) == (source.labels, source.preprocessing)


def test_a_folder_for_a_model_without_head_or_labels(make_model, tmp_path):
    keras_vit.save_weights(
        make_model(include_top=False, representation_size=5, image_size=(8, 16)),
        tmp_path / "a",
        "huggingface",
    )
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["architectures"] == ["ViTModel"]
    assert (config["image_size"], config["pooler_output_size"]) == ([8, 16], 5)
    assert "vit.layernorm.weight" not in load_arrays(tmp_path / "a" / "model.safetensors")


def test_a_folder_cannot_say_every_interpolation(make_model, tmp_path):
    model = make_model()
    model.preprocessing = keras_vit.Preprocessing(size=16, interpolation="area")
    with pytest.raises(
        ValueError, match=r"preprocessor_config.json knows the interpolations \['nearest'.*'area'"
    ):
        keras_vit.save_weights(model, tmp_path / "a", "huggingface")
    assert list(tmp_path.rglob("*.*")) == []
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "huggingface")


@pytest.mark.parametrize(
    ("name", "layout"), [("a.npz", "official"), ("a.safetensors", "timm"), ("a", "huggingface")]
)
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


@pytest.mark.parametrize(
    ("source", "layout"), [(f"{REAL}.npz", "official"), (f"{REAL}.huggingface.safetensors", "huggingface")]
)
def test_real_files_come_back_byte_for_byte(real_data, tmp_path, source, layout):
    model = keras_vit.ViT_Ti16(weights=real_data / source)
    path = tmp_path / f"a{pathlib.Path(source).suffix}"
    keras_vit.save_weights(model, path, layout)
    written, original = load_arrays(path), load_arrays(real_data / source)
    assert set(written) == set(original)
    for name, array in original.items():
        assert written[name].shape == array.shape and written[name].tobytes() == array.tobytes(), name


def test_real_files_in_both_layouts_hold_the_same(real_data, weights_of):
    models = [
        keras_vit.ViT_Ti16(weights=real_data / f"{REAL}{suffix}")
        for suffix in (".npz", ".huggingface.safetensors")
    ]
    check_equal(*models, weights_of)
