"""load_weights and create_model on hybrids, DeiT, Swin, BiT and axial models: what is special in their files."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
import safetensors.numpy
from golden_arrays import stored_in
from slow_rows import slow_after

import keras_vit


def check_equal(model, expected, weights_of):
    mine, theirs = weights_of(model), weights_of(expected)
    assert list(mine) == list(theirs)
    for path, array in theirs.items():
        np.testing.assert_array_equal(mine[path], array, err_msg=path)


def arrays_of(model, path, layout):
    """The arrays of a model in a layout; the file stays."""
    keras_vit.save_weights(model, path, layout)
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    return safetensors.numpy.load_file(path)


def write(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        safetensors.numpy.save_file(arrays, path)
    return path


# Dialects of the layouts


@pytest.mark.parametrize("kind", ["hybrid", "bit"])
def test_vectors_of_group_norm_may_have_four_axes(make_kind, weights_of, tmp_path, kind):
    source, model = make_kind(kind, seed=1), make_kind(kind, seed=2)
    arrays = arrays_of(source, tmp_path / "a.npz", "official")
    norms = [name for name in arrays if re.search(r"/gn\d/|gn_root|gn_proj|group_norm", name)]
    assert len(norms) == {"hybrid": 2 + 3 * 6 + 2 * 2, "bit": 3 * 6 + 2}[kind]
    for name in norms:
        arrays[name] = arrays[name].reshape(1, 1, 1, -1)
    keras_vit.load_weights(model, write(tmp_path / "b.npz", arrays))
    check_equal(model, source, weights_of)


def test_bit_names_that_tensorflow_1_numbered(make_kind, weights_of, logits_of, tmp_path):
    source, model = make_kind("bit", seed=1), make_kind("bit", seed=2)
    arrays = arrays_of(source, tmp_path / "a.npz", "official")
    numbered = {}
    for number, (name, array) in enumerate(arrays.items()):
        numbered[re.sub(r"/(standardized_conv2d|group_norm|conv2d)/", rf"/\1_{number}/", name)] = array
    assert not set(numbered) & set(arrays)
    report = keras_vit.load_weights(model, write(tmp_path / "b.npz", numbered))
    assert report.used == tuple(numbered)
    check_equal(model, source, weights_of)
    np.testing.assert_array_equal(logits_of(model), logits_of(source))


def test_two_numbers_for_one_place_are_refused(make_kind, tmp_path):
    arrays = arrays_of(make_kind("bit"), tmp_path / "a.npz", "official")
    arrays["resnet/group_norm_2/beta"] = arrays["resnet/group_norm/beta"]
    with pytest.raises(ValueError, match="'resnet/group_norm/beta' and 'resnet/group_norm_2/beta' both stand for"):
        keras_vit.load_weights(make_kind("bit"), write(tmp_path / "b.npz", arrays))


def test_timm_has_the_downsample_of_swin_in_the_next_stage(make_kind, tmp_path):
    model = make_kind("swin")
    theirs = {layout: arrays_of(model, tmp_path / f"{layout}.safetensors", layout) for layout in ("microsoft", "timm")}
    renamed = {
        name.replace("layers.0.downsample", "layers.1.downsample").replace("head.", "head.fc."): array
        for name, array in theirs["microsoft"].items()
    }
    assert set(renamed) == set(theirs["timm"])
    for name, array in renamed.items():
        np.testing.assert_array_equal(theirs["timm"][name], array)
    reduction = model.get_layer("stage_1_downsample").reduction.kernel.numpy()
    np.testing.assert_array_equal(theirs["timm"]["layers.1.downsample.reduction.weight"], reduction.T)


@pytest.mark.parametrize(
    ("layout", "buffers"),
    [
        ("microsoft", ["layers.0.blocks.1.attn_mask", "layers.1.blocks.0.attn.relative_position_index"]),
        ("timm", ["layers.0.blocks.1.attn_mask", "layers.0.blocks.0.attn.relative_position_index"]),
        ("huggingface", ["swin.encoder.layers.0.blocks.0.attention.self.relative_position_index"]),
    ],
)
def test_buffers_of_swin_are_no_weights(make_kind, weights_of, tmp_path, layout, buffers):
    source, model = make_kind("swin", seed=1), make_kind("swin", seed=2)
    arrays = arrays_of(source, tmp_path / "a.safetensors", layout)
    arrays |= {name: np.zeros((16, 16), "int64") for name in buffers}
    report = keras_vit.load_weights(model, write(tmp_path / "b.safetensors", arrays))
    assert set(report.unused) == set(buffers)
    check_equal(model, source, weights_of)


# Hybrids

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def test_load_builds_hybrids_for_rgb_in_the_numerics_of_their_layout(tmp_path):
    """timm and vit_jax computed the logits; their ResNets have other epsilons."""
    cases = {"timm_rstem_p8": "timm", "timm_hybrid_r11": "timm", "vj_rstem_p8_legacy": "vit"}
    cases |= dict.fromkeys(("vj_hybrid_r22_w05_legacy", "vj_eps_probe_hybrid", "vj_hybrid_r1_w1_linen"), "vit")
    for case, style in cases.items():
        about, io = json.loads((GOLDEN / case / "case.json").read_text()), stored_in(GOLDEN / case / "io.npz")
        heads = {"num_heads": about["config"]["num_heads"]} if style == "timm" else {}
        arguments = {"channels": 3} if case == "timm_hybrid_r11" else {}
        model = keras_vit.load(GOLDEN / case / about["params_file"], **heads, **arguments)
        assert (model.config.channels, model.config.stem.style) == (3, style)
        assert list(model.config.image_size) == about["image_size"]
        np.testing.assert_allclose(model(io["images"]), io["logits"], atol=about["tolerance"]["logits_atol"])
    keras_vit.save_weights(model, tmp_path / "a.safetensors", "original")
    again = keras_vit.load(tmp_path / "a.safetensors")
    assert again.config == model.config
    np.testing.assert_allclose(again(io["images"]), io["logits"], atol=5e-6)


def test_stated_channels_that_the_arrays_contradict_are_refused(make_kind, tmp_path):
    for held, stated, words in (
        (4, 3, "the file states channels=3; the model has 4"),
        (3, 4, "its arrays are for RGB"),
    ):
        folder = tmp_path / str(held)
        keras_vit.save_weights(make_kind("vit", channels=held), folder, "huggingface")
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, "num_channels": stated}))
        with pytest.raises(ValueError, match=words):
            keras_vit.load_weights(make_kind("vit", channels=4), folder)
        with pytest.raises(ValueError, match="does not fit the model"):
            keras_vit.load(folder)


# Other windows


@pytest.mark.parametrize("layout", slow_after(2, ["microsoft", "timm", "huggingface", "weights.h5", "keras"]))
def test_tables_of_another_window_are_resized_bicubically(make_kind, tmp_path, layout):
    source = make_kind("swin", seed=1, image_size=64, window_size=4)
    path = tmp_path / ("a.safetensors" if layout in ("huggingface", "microsoft", "timm") else f"a.{layout}")
    if path.suffix == ".safetensors":
        keras_vit.save_weights(source, path, layout)
    else:
        (source.save if layout == "keras" else source.save_weights)(path)
    model = make_kind("swin", seed=2, image_size=64, window_size=7)
    report = keras_vit.load_weights(model, path)
    assert len(report.resized) == 3
    assert report.resized[0].endswith(": (49, 1) -> (169, 1) (bicubic)")
    assert report.missing == report.reinitialised == ()
    for new, old in zip(model.weights, source.weights, strict=True):
        expected = old.numpy()
        if new.path.endswith("relative_position_bias/embedding"):
            expected = keras_vit.resize_position_embedding(expected, (7, 7), (13, 13), 0, "bicubic")
        np.testing.assert_array_equal(new.numpy(), expected, err_msg=new.path)
    report = keras_vit.load_weights(model, path, resize="bilinear")
    assert report.resized[0].endswith("(bilinear)")
    table = source.get_layer("stage_2_block_00").attention.relative_position_bias.embedding.numpy()
    expected = keras_vit.resize_position_embedding(table, (7, 7), (13, 13), 0, "bilinear")
    bias = model.get_layer("stage_2_block_00").attention.relative_position_bias
    np.testing.assert_array_equal(bias.embedding.numpy(), expected)


def test_a_table_of_no_window_is_refused(make_kind, tmp_path):
    name = "layers.0.blocks.0.attn.relative_position_bias_table"
    arrays = arrays_of(make_kind("swin"), tmp_path / "a.safetensors", "timm")
    for shape in ((48, 1), (49, 2)):
        arrays[name] = np.zeros(shape, "float32")
        with pytest.raises(ValueError, match=re.escape(f"! {name}: shape {shape}, the model needs (49, 1)")):
            keras_vit.load_weights(make_kind("swin"), write(tmp_path / "b.safetensors", arrays))


# Files of something else

FILES = {
    "vit": ("a Vision Transformer", ["official", "timm", "huggingface", "keras"]),
    "swin": ("a Swin Transformer", ["huggingface", "microsoft", "timm", "keras"]),
    "bit": ("a BiT ResNet", ["official", "keras"]),
    "axial_resnet": ("an AxialResNet", ["keras"]),
}


def test_files_of_another_family_are_named(make_kind, tmp_path):
    models = {kind: make_kind(kind) for kind in FILES}
    for kind, (held, layouts) in FILES.items():
        sources = [(models[kind], layout) for layout in layouts]
        if "huggingface" in layouts:  # whose names have no prefix without a head
            sources.append((make_kind(kind, include_top=False), "huggingface"))
        for source, layout in sources:
            path = tmp_path / {"official": "a.npz", "keras": "a.keras"}.get(layout, "a.safetensors")
            if layout == "keras":
                source.save(path)
            else:
                keras_vit.save_weights(source, path, layout)
            for other, (wanted, _) in FILES.items():
                if other != kind:
                    message = f"must hold the weights of {wanted} in a layout among .*; it holds those of {held}"
                    with pytest.raises(ValueError, match=message):
                        keras_vit.load_weights(models[other], path)


def test_a_layout_of_another_family(make_kind, tmp_path):
    keras_vit.save_weights(make_kind("swin"), tmp_path / "a.safetensors", "timm")
    with pytest.raises(ValueError, match="one of huggingface, microsoft, timm, keras for this model; .*'official'"):
        keras_vit.load_weights(make_kind("swin"), tmp_path / "a.safetensors", layout="official")
    with pytest.raises(ValueError, match="one of official, keras for this model; got layout='microsoft'"):
        keras_vit.load_weights(make_kind("bit"), tmp_path / "a.safetensors", layout="microsoft")


# DeiT


@pytest.mark.parametrize("layout", ["timm", "huggingface"])
def test_distilled_and_plain_files_are_not_mixed(make_kind, weights_of, tmp_path, layout):
    names = {
        "timm": (["dist_token", "head_dist.bias", "head_dist.weight"], [], ["dist_token", "head_dist."]),
        "huggingface": (
            ["embeddings.distillation_token", "distillation_classifier.bias", "cls_classifier.bias"],
            ["classifier.weight", "classifier.bias"],
            ["embeddings.distillation_token", "distillation_classifier.", "cls_classifier."],
        ),
    }
    extra, missing, missing_in_plain = names[layout]
    keras_vit.save_weights(make_kind("distilled"), tmp_path / "distilled.safetensors", layout)
    keras_vit.save_weights(make_kind("vit"), tmp_path / "plain.safetensors", layout)
    model = make_kind("vit", seed=2)
    before = weights_of(model)
    with pytest.raises(ValueError) as error:
        keras_vit.load_weights(model, tmp_path / "distilled.safetensors", head="load")
    lines = str(error.value).splitlines()
    for name in extra:
        assert any(re.fullmatch(rf"  \+ extra {name}", line) for line in lines), (name, lines)
    for name in missing:
        assert any(line.startswith(f"  - missing {name}") for line in lines), (name, lines)
    for path, array in before.items():
        np.testing.assert_array_equal(weights_of(model)[path], array)
    with pytest.raises(ValueError, match="extra .*dist"):
        keras_vit.load_weights(model, tmp_path / "distilled.safetensors")
    with pytest.raises(ValueError) as error:
        keras_vit.load_weights(make_kind("distilled"), tmp_path / "plain.safetensors", head="load")
    for name in missing_in_plain:
        assert f"missing {name}" in str(error.value) or f", {name}" in str(error.value), name


def test_a_distillation_token_without_a_head_is_a_register(make_kind, logits_of, tmp_path):
    """DeiTForImageClassification drops the second head of a distilled model and keeps its token."""
    source = make_kind("distilled", seed=1)
    arrays = arrays_of(source, tmp_path / "a.safetensors", "huggingface")
    kept = {name: array for name, array in arrays.items() if not name.startswith("distillation_classifier")}
    renamed = {name.removeprefix("cls_"): array for name, array in kept.items()}
    path = write(tmp_path / "b.safetensors", renamed)
    model = make_kind("vit", seed=2, num_registers=1)
    assert keras_vit.load_weights(model, path).unused == {}
    class_logits = keras.Model(source.input, source.get_layer("head").output)
    np.testing.assert_allclose(logits_of(model), logits_of(class_logits), atol=1e-5)
    with pytest.raises(ValueError, match=r"extra embeddings\.distillation_token"):
        keras_vit.load_weights(make_kind("vit"), path)


def test_a_new_number_of_classes_for_both_heads(make_kind, weights_of, tmp_path):
    source, model = make_kind("distilled", seed=1), make_kind("distilled", seed=2, classes=5)
    keras_vit.save_weights(source, tmp_path / "a.safetensors", "timm")
    report = keras_vit.load_weights(model, tmp_path / "a.safetensors")
    heads = ("head/kernel", "head/bias", "head_dist/kernel", "head_dist/bias")
    assert report.reinitialised == heads
    weights, expected = weights_of(model), weights_of(source)
    for path, array in weights.items():
        np.testing.assert_array_equal(array, 0 if path in heads else expected[path], err_msg=path)


# Files of Keras

KERAS = [
    ("vit", {"position_embedding": "learned_2d"}),
    ("vit", {"position_placement": "every", "position_embedding": "relative"}),
    ("hybrid", {}),
    ("distilled", {}),
    ("swin", {"window_size": 7}),
    ("vit", {"position_placement": "every"}),
    ("vit", {"position_placement": "shared", "position_embedding": "learned_2d"}),
    ("vit", {"position_placement": "shared", "position_embedding": "relative"}),
    ("root", {}),
    ("axial", {}),
    ("bit", {}),
    ("axial_resnet", {}),
]
SUFFIXES = ("weights.h5", "keras")


def save(model, folder, suffix):
    path = folder / f"a.{suffix}"
    (model.save if suffix == "keras" else model.save_weights)(path)
    return path


@pytest.mark.parametrize(("kind", "changes"), slow_after(2, KERAS))
def test_files_of_keras(make_kind, weights_of, logits_of, tmp_path, kind, changes):
    source, model = make_kind(kind, seed=1, **changes), make_kind(kind, seed=2, **changes)
    rows, columns = source.config.image_size
    new_size = (rows, 2 * columns) if kind != "swin" else (2 * rows, 2 * columns)
    other, resized = make_kind(kind, seed=3, **{**changes, "image_size": new_size}), keras_vit.resize(source, new_size)
    changed = [new.shape != old.shape for new, old in zip(resized.weights, source.weights, strict=True)]
    assert any(changed) == (kind != "bit")
    for suffix in SUFFIXES:
        path = save(source, tmp_path, suffix)
        report = keras_vit.load_weights(model, path)
        assert report.missing == report.reinitialised == tuple(report.unused) == report.resized == ()
        check_equal(model, source, weights_of)
        report = keras_vit.load_weights(other, path)
        assert report.missing == report.reinitialised == tuple(report.unused) == ()
        assert len(report.resized) == sum(changed)
        check_equal(other, resized, weights_of)
    np.testing.assert_array_equal(logits_of(model), logits_of(source))


def test_position_tables_of_equal_length_and_another_grid(make_kind, weights_of, tmp_path):
    """4 x 4 and 2 x 8 patches, positions in every block."""
    source = make_kind("vit", seed=1, position_placement="every")
    model = make_kind("vit", seed=2, position_placement="every", image_size=(8, 32))
    for suffix in SUFFIXES:
        report = keras_vit.load_weights(model, save(source, tmp_path, suffix))
        assert len(report.resized) == 2
        check_equal(model, keras_vit.resize(source, (8, 32)), weights_of)


@pytest.mark.parametrize("kind", slow_after(1, ["hybrid", "distilled", "swin", "axial", "root", "bit", "axial_resnet"]))
def test_create_model_takes_a_keras_file(make_kind, in_zoo, weights_of, tmp_path, kind):
    source = make_kind(kind, seed=1)
    source.labels = ("ant", "bee", "cat")
    create = in_zoo(kind)
    rows, columns = source.config.image_size
    for suffix, size in zip(SUFFIXES, (source.config.image_size, (2 * rows, 2 * columns)), strict=True):
        model = create(save(source, tmp_path, suffix), image_size=size)
        check_equal(model, keras_vit.resize(source, size), weights_of)
        assert model.labels == (source.labels if suffix == "keras" else None)


def test_create_model_takes_the_numerics_of_a_keras_file(make_kind, in_zoo, logits_of, tmp_path):
    numerics = {"gn_epsilon": 1e-2, "std_epsilon": 1e-3, "max_pool_padding": "minus_infinity"}
    source = make_kind("bit", seed=1, **numerics)
    source.save(tmp_path / "bit.keras")
    model = in_zoo("bit")(tmp_path / "bit.keras")
    assert {name: getattr(model.config, name) for name in numerics} == numerics
    np.testing.assert_array_equal(logits_of(model), logits_of(source))
    given = in_zoo("bit")(tmp_path / "bit.keras", gn_epsilon=1e-5)
    assert (given.config.gn_epsilon, given.config.std_epsilon) == (1e-5, 1e-3)
    with pytest.warns(UserWarning) as warned:
        report = keras_vit.load_weights(make_kind("bit"), tmp_path / "bit.keras")
    assert "the file states max_pool_padding='minus_infinity'; the model has 'zeros'" in report.notes
    assert len(warned) == len(report.notes) == 3
    stem = keras_vit.ResNetConfig(stage_sizes=(2, 1), width_factor=0.5, style="timm", gn_epsilon=1e-2)
    source = make_kind("hybrid", seed=1, stem=stem, gelu="erf")
    source.save(tmp_path / "hybrid.keras")
    model = in_zoo("hybrid")(tmp_path / "hybrid.keras")
    assert model.config.stem == stem.resolve()
    np.testing.assert_array_equal(logits_of(model), logits_of(source))
    with pytest.warns(UserWarning, match="the file states "):
        report = keras_vit.load_weights(make_kind("hybrid"), tmp_path / "hybrid.keras")
    assert "the file states stem.style='timm'; the model has 'vit'" in report.notes


@pytest.mark.parametrize(("layout", "style"), [("official", "vit"), ("timm", "timm")])
def test_create_model_takes_the_style_of_a_hybrids_layout(make_kind, in_zoo, save_foreign, tmp_path, layout, style):
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    save_foreign(make_kind("hybrid"), path, layout)
    config = in_zoo("hybrid")(path).config
    gn_epsilon = {"vit": 1e-6, "timm": 1e-5}[style]
    assert (config.stem.style, config.stem.gn_epsilon) == (style, gn_epsilon)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_hybrid_on_a_stem_of_the_users_own(user_hybrid, weights_of, logits_of, tmp_path, suffix):
    source, model = user_hybrid(1), user_hybrid(2)
    report = keras_vit.load_weights(model, save(source, tmp_path, suffix))
    assert report.missing == report.reinitialised == tuple(report.unused) == ()
    check_equal(model, source, weights_of)
    np.testing.assert_array_equal(logits_of(model), logits_of(source))
