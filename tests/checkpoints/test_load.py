"""load_weights and create_model: a strict merge, what may differ and what is said about it."""

import json
import re

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints.labels import label_set

TABLE = "Transformer/posembed_input/pos_embedding"
KERNEL = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"


@pytest.fixture
def arrays(make_model, tmp_path):
    """The arrays of an official file that fits the tiny model."""
    return official_arrays(make_model(seed=1), tmp_path / "source.npz")


def official_arrays(model, path):
    keras_vit.save_weights(model, path)
    with np.load(path) as file:
        return dict(file)


to_numpy = keras.ops.convert_to_numpy


def npz(path, arrays):
    np.savez(path, **arrays)  # without the grid that save_weights adds
    return path


def check_equal(weights, expected, leave_out=()):
    assert set(weights) - set(leave_out) == set(expected) - set(leave_out)
    for path in set(weights) - set(leave_out):
        np.testing.assert_array_equal(weights[path], expected[path], err_msg=path)


@pytest.fixture
def refused(make_model, weights_of, tmp_path):
    """Function that loads arrays and expects a refusal which changes nothing; returns the lines of the message."""

    def check(arrays, model=None, **kwargs):
        model = model or make_model(seed=2)
        before = weights_of(model)
        with pytest.raises(ValueError) as error:
            keras_vit.load_weights(model, npz(tmp_path / "refused.npz", arrays), **kwargs)
        check_equal(weights_of(model), before)
        return str(error.value).splitlines()

    return check


@pytest.fixture
def tiny_zoo(in_zoo):
    """`create_model` of the tiny ViT."""
    return in_zoo("vit")


# Strictness


def test_everything_is_loaded_and_reported(make_model, weights_of, arrays, tmp_path, capsys):
    model = make_model(seed=2)
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    check_equal(weights_of(model), weights_of(make_model(seed=1)))
    assert isinstance(report, keras_vit.LoadReport)
    assert report.used == tuple(arrays)
    assert (report.resized, report.reinitialised, report.unused, report.missing, report.notes) == (
        (),
        (),
        (),
        (),
        (),
    )
    assert report.source == f"{tmp_path / 'a.npz'} (official names)"
    assert capsys.readouterr().out == f"Loaded {len(arrays)} arrays of {report.source}\n"


def test_missing_extra_and_misshapen_are_listed_together(refused, arrays):
    arrays["surplus/kernel"] = np.zeros(3, "float32")
    del arrays["cls"], arrays["Transformer/encoderblock_1/LayerNorm_2/bias"]
    arrays[KERNEL] = np.zeros((8, 11), "float32")
    lines = refused(arrays)
    assert re.fullmatch(r"'.*refused\.npz' does not fit the model:", lines[0])
    assert sorted(lines[1:]) == [
        f"  ! {KERNEL}: shape (8, 11), the model needs (8, 12)",
        "  + extra surplus/kernel",
        "  - missing Transformer/encoderblock_1/LayerNorm_2/bias (for block_01/norm2/beta)",
        "  - missing cls (for class_token/class_token)",
    ]


def test_a_part_of_the_fused_projection_is_missing(refused, arrays):
    name = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/key/kernel"
    del arrays[name]
    assert refused(arrays)[1:] == [f"  - missing {name} (for block_00/attention/query_key_value/kernel)"]


def test_a_deeper_and_a_narrower_model(refused, make_model, arrays):
    lines = refused(arrays, make_model(num_layers=3))
    assert len(lines) == 1 + 12
    assert all(line.startswith("  - missing Transformer/encoderblock_2/") for line in lines[1:])
    lines = refused(arrays, make_model(hidden_dim=4))
    assert f"  ! {TABLE}: shape (1, 17, 8), the model needs (1, rows, 4)" in lines
    assert "  ! embedding/kernel: shape (4, 4, 3, 8), the model needs (4, 4, 3, 4)" in lines


def test_other_heads_are_told_from_their_shape(refused, make_model, arrays):
    assert any(
        "query/kernel: shape (8, 2, 4), the model needs (8, 4, 2)" in line
        for line in refused(arrays, make_model(num_heads=4))
    )


def test_damage_in_the_last_array_changes_nothing(make_model, weights_of, tmp_path):
    model = make_model(classes=3000)  # a head larger than what zipfile reads ahead
    path = tmp_path / "a.npz"
    keras_vit.save_weights(model, path)
    content = bytearray(path.read_bytes())
    with np.load(path) as file:
        assert file.files[-1] == "head/bias"
    content[content.index(model.get_layer("head").bias.numpy().tobytes()[-8:])] ^= 1
    path.write_bytes(content)
    other = make_model(seed=2, classes=3000)
    before = weights_of(other)
    with pytest.raises(ValueError, match="array 'head/bias' is damaged: .*(CRC|checksum)"):
        keras_vit.load_weights(other, path)
    check_equal(weights_of(other), before)


def test_create_model_raises_as_well_and_leaves_keras_as_it_was(tiny_zoo, arrays, tmp_path):
    del arrays["cls"]
    with pytest.raises(ValueError, match="missing cls"):
        tiny_zoo(npz(tmp_path / "a.npz", arrays), classes=3)
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert layer.kernel.numpy().shape == (3, 2)


def test_a_file_of_something_else(make_model, tmp_path):
    path = npz(tmp_path / "a.npz", {"conv1/kernel": np.zeros(3), "fc/bias": np.zeros(3)})
    with pytest.raises(
        ValueError, match=r"must hold the weights of a Vision Transformer.*it holds conv1/kernel, fc/bias"
    ):
        keras_vit.load_weights(make_model(), path)
    with pytest.raises(ValueError, match="no array at all"):
        keras_vit.load_weights(make_model(), npz(tmp_path / "b.npz", {}))


def test_two_arrays_for_one_place(refused, arrays):
    arrays["params/cls"] = arrays["cls"]
    assert re.search(r"arrays 'cls' and 'params/cls' both stand for 'cls'", refused(arrays)[0])


def test_pieces_of_the_wrong_rank_are_refused(refused, arrays):
    arrays["cls"] = np.zeros(8, "float32")
    assert "  ! cls: shape (8,), the model needs (1, 1, 8)" in refused(arrays)
    arrays["head/bias"] = np.float32(0)
    refused(arrays, head="load")


# The head


def test_another_number_of_classes(make_model, weights_of, arrays, tmp_path, capsys):
    model = make_model(classes=5)
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    assert report.reinitialised == ("head/kernel", "head/bias")
    assert report.unused == ("head/kernel", "head/bias")
    assert report.missing == ()
    assert "  reinitialised: head/kernel, head/bias\n  unused: head/kernel, head/bias\n" in capsys.readouterr().out
    weights = weights_of(model)
    assert not weights["head/kernel"].any() and not weights["head/bias"].any()
    check_equal(weights, weights_of(make_model(seed=1)), leave_out=("head/kernel", "head/bias"))


def test_head_load_insists(refused, make_model, arrays):
    lines = refused(arrays, make_model(classes=5), head="load")
    assert lines[1:] == [
        "  ! head/kernel: shape (8, 3), the model needs (8, 5)",
        "  ! head/bias: shape (3,), the model needs (5,)",
    ]


def test_head_reinitialise_of_a_head_that_fits(make_model, weights_of, arrays, tmp_path):
    model = make_model()
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays), head="reinitialise")
    assert report.reinitialised == report.unused == ("head/kernel", "head/bias")
    assert not weights_of(model)["head/kernel"].any()


def test_a_file_without_head(make_model, weights_of, arrays, tmp_path, refused):
    del arrays["head/kernel"], arrays["head/bias"]
    model = make_model()
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    assert report.missing == report.reinitialised == ("head/kernel", "head/bias")
    assert not weights_of(model)["head/kernel"].any()
    assert refused(arrays, head="load")[1] == "  - missing head/kernel (for head/kernel)"


def test_half_a_head_is_no_head(make_model, arrays, tmp_path):
    del arrays["head/bias"]
    report = keras_vit.load_weights(make_model(), npz(tmp_path / "a.npz", arrays))
    assert (report.reinitialised, report.missing) == (("head/kernel", "head/bias"), ("head/bias",))


def test_a_model_without_head(make_model, weights_of, arrays, tmp_path):
    model = make_model(include_top=False)
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    assert report.unused == ("head/kernel", "head/bias") and report.reinitialised == ()
    check_equal(weights_of(model), weights_of(make_model(seed=1, include_top=True)), ("head/kernel", "head/bias"))
    for head in ("load", "reinitialise"):
        with pytest.raises(ValueError, match=rf"head='{head}' is for a model with a head; tiny has include_top=False"):
            keras_vit.load_weights(model, tmp_path / "a.npz", head=head)


def test_pre_logits_go_together_with_the_head(make_model, weights_of, tmp_path, refused):
    source = make_model(seed=1, representation_size=8)  # the head would fit
    arrays = official_arrays(source, tmp_path / "a.npz")
    model = make_model()
    report = keras_vit.load_weights(model, npz(tmp_path / "b.npz", arrays))
    assert report.reinitialised == ("head/kernel", "head/bias")
    assert set(report.unused) == {"head/kernel", "head/bias", "pre_logits/kernel", "pre_logits/bias"}
    assert any("pre_logits is dropped" in note for note in report.notes)
    assert not weights_of(model)["head/kernel"].any()
    same = make_model(representation_size=8)
    assert keras_vit.load_weights(same, tmp_path / "b.npz").unused == ()
    check_equal(weights_of(same), weights_of(source))
    lines = refused(official_arrays(make_model(), tmp_path / "c.npz"), make_model(representation_size=8))
    assert "  - missing pre_logits/kernel (for pre_logits/kernel)" in lines


def test_a_head_of_zeros_warns(make_model, tiny_zoo, arrays, tmp_path):
    arrays["head/kernel"] = np.zeros_like(arrays["head/kernel"])
    path = npz(tmp_path / "a.npz", arrays)
    with pytest.warns(
        UserWarning, match=r"the head in .*a\.npz is all zeros.*the same score until the head is trained"
    ):
        keras_vit.load_weights(make_model(), path)
    with pytest.warns(UserWarning, match="all zeros"):
        tiny_zoo(path, classes=3)
    keras_vit.load_weights(make_model(classes=5), path)  # a head that is not loaded does not warn


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite_weights_warn_by_name(make_model, weights_of, tiny_zoo, arrays, tmp_path, value):
    arrays[KERNEL][3, 4] = value
    path = npz(tmp_path / "a.npz", arrays)
    model = make_model()
    with pytest.warns(UserWarning, match=rf"array '{KERNEL}' of .*a\.npz holds NaN or infinite values"):
        keras_vit.load_weights(model, path)
    np.testing.assert_array_equal(weights_of(model)["block_00/mlp/dense1/kernel"], arrays[KERNEL])
    with pytest.warns(UserWarning, match=rf"array '{KERNEL}' of"):
        tiny_zoo(path, classes=3)


def test_large_finite_weights_do_not_warn(make_model, arrays, tmp_path):
    arrays[KERNEL][:] = 3e38  # their sum overflows
    keras_vit.load_weights(make_model(), npz(tmp_path / "a.npz", arrays))


# What the report says


def test_printed_report(tmp_path):
    report = keras_vit.LoadReport(
        used=("a", "b"),
        resized=("pos: 4 x 4 -> 2 x 2 (bilinear)",),
        reinitialised=("head/kernel", "head/bias"),
        unused=tuple(f"u{number}" for number in range(8)),
        missing=(),
        source="file.npz (official names)",
        notes=("one", "two"),
    )
    assert str(report) == (
        "Loaded 2 arrays of file.npz (official names)\n"
        "  resized: pos: 4 x 4 -> 2 x 2 (bilinear)\n"
        "  reinitialised: head/kernel, head/bias\n"
        "  unused: u0, u1, u2, u3, u4, u5 and 2 more\n"
        "  note: one\n"
        "  note: two"
    )


def test_notes_on_another_gelu_and_epsilon(make_model, arrays, tmp_path, capsys):
    report = keras_vit.load_weights(make_model(gelu="erf", epsilon=1e-5), npz(tmp_path / "a.npz", arrays))
    assert report.notes == (
        "the file was trained with gelu='tanh'; the model has 'erf'",
        "the file was trained with epsilon=1e-06; the model has 1e-05",
    )
    assert "  note: the file was trained with gelu='tanh'; the model has 'erf'\n" in capsys.readouterr().out


def test_a_huggingface_file_without_config_says_what_is_assumed(make_model, tiny_zoo, tmp_path):
    keras_vit.save_weights(make_model(), tmp_path / "a.safetensors", "huggingface")
    report = keras_vit.load_weights(make_model(), tmp_path / "a.safetensors")
    assert "no config.json beside the file: gelu='erf' and epsilon=1e-12 are assumed" in report.notes
    config = tiny_zoo(tmp_path / "a.safetensors", classes=3).config
    assert (config.gelu, config.epsilon) == ("erf", 1e-12)


def test_the_family_decides_gelu_and_epsilon_unless_they_are_given(make_model, tiny_zoo, tmp_path):
    keras_vit.save_weights(make_model(), tmp_path / "a.safetensors", "timm")
    config = tiny_zoo(tmp_path / "a.safetensors", classes=3).config
    assert (config.gelu, config.epsilon) == ("erf", 1e-6)
    config = tiny_zoo(tmp_path / "a.safetensors", classes=3, gelu="tanh", epsilon=1e-3).config
    assert (config.gelu, config.epsilon) == ("tanh", 1e-3)


# Position tables


def table_of(model):
    return model.get_layer("position_embs").embedding.numpy()


@pytest.mark.parametrize(
    ("layout", "method"),
    [("official", "align_corners"), ("timm", "bicubic_antialias"), ("huggingface", "bicubic")],
)
def test_another_grid_is_resized_as_the_family_does(make_model, tmp_path, layout, method):
    source = make_model(seed=1)
    path = tmp_path / ("a.npz" if layout == "official" else "a.safetensors")
    keras_vit.save_weights(source, path, layout)
    model = make_model(image_size=(8, 24))
    report = keras_vit.load_weights(model, path)
    (resized,) = report.resized
    assert resized.endswith(f": 4 x 4 -> 2 x 6 ({method})")
    expected = keras_vit.resize_position_embedding(table_of(source), (4, 4), (2, 6), 1, method)
    np.testing.assert_array_equal(table_of(model), expected)
    other = make_model(image_size=(8, 24))
    assert keras_vit.load_weights(other, path, resize="bilinear").resized == (resized.replace(method, "bilinear"),)
    expected = keras_vit.resize_position_embedding(table_of(source), (4, 4), (2, 6), 1, "bilinear")
    np.testing.assert_array_equal(table_of(other), expected)


@pytest.mark.parametrize("name", ["pos_embedding", "Transformer/pos_embedding"])
def test_a_table_without_class_row(make_model, arrays, tmp_path, name):
    """big_vision adds positions before the class token: ours gets a row of zeros, and the tokens are the same."""
    table = arrays.pop(TABLE)[:, 1:]
    model = make_model()
    keras_vit.load_weights(model, npz(tmp_path / "a.npz", {**arrays, name: table}))
    np.testing.assert_array_equal(table_of(model), np.concatenate([np.zeros((1, 1, 8)), table], axis=1))
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    layers = {name: model.get_layer(name).output for name in ("patch_encoder", "position_embs")}
    outputs = {key: to_numpy(value) for key, value in keras.Model(model.input, layers)(images).items()}
    theirs = outputs["patch_encoder"].reshape(2, 16, 8) + table
    theirs = np.concatenate([np.broadcast_to(arrays["cls"], (2, 1, 8)), theirs], axis=1)
    np.testing.assert_allclose(outputs["position_embs"], theirs, atol=1e-6)


def test_a_table_with_rows_for_registers(make_model, tmp_path):
    """timm without no_embed_class: class token, registers and patches all have rows."""
    source = make_model(seed=1, num_registers=4)
    keras_vit.save_weights(source, tmp_path / "a.safetensors", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    rows = np.random.default_rng(3).normal(size=(1, 1 + 4 + 16, 8)).astype("float32")
    safetensors.numpy.save_file({**arrays, "pos_embed": rows}, tmp_path / "b.safetensors")
    model = make_model(num_registers=4)
    assert keras_vit.load_weights(model, tmp_path / "b.safetensors").resized == ()
    np.testing.assert_array_equal(table_of(model), rows[:, [0, *range(5, 21)]])
    registers = model.get_layer("class_token").registers.numpy()
    np.testing.assert_array_equal(registers, arrays["reg_token"] + rows[:, 1:5])
    images = np.zeros((1, 16, 16, 3), "float32")
    tokens = to_numpy(keras.Model(model.input, model.get_layer("position_embs").output)(images))
    theirs = np.concatenate([arrays["cls_token"], arrays["reg_token"], np.zeros((1, 16, 8))], axis=1) + rows
    theirs[:, 5:] += arrays["patch_embed.proj.bias"]
    np.testing.assert_allclose(tokens, theirs, atol=1e-6)


def test_196_rows_are_not_195_and_a_class_token(make_model, arrays, refused, tmp_path):
    rows = np.zeros((1, 196, 8), "float32")
    lines = refused({**arrays, TABLE: rows}, make_model(image_size=56))
    assert lines[1].startswith(
        f"  ! {TABLE}: the position table must have a square grid of rows, or the model's 14 x 14, after 1"
    )
    assert lines[1].endswith("got 196 rows")
    del arrays[TABLE]
    model = make_model(image_size=56)
    rows = np.random.default_rng(0).normal(size=rows.shape).astype("float32")
    assert keras_vit.load_weights(model, npz(tmp_path / "a.npz", {**arrays, "pos_embedding": rows})).resized == ()
    np.testing.assert_array_equal(table_of(model)[:, 1:], rows)


def test_a_grid_that_is_not_square_fits_a_model_of_that_grid_alone(make_model, tmp_path, refused):
    source = make_model(seed=1, image_size=(8, 20))
    arrays = official_arrays(source, tmp_path / "a.npz")
    model = make_model(image_size=(8, 20))
    assert keras_vit.load_weights(model, npz(tmp_path / "b.npz", arrays)).resized == ()
    np.testing.assert_array_equal(table_of(model), table_of(source))
    assert "got 11 rows" in refused(arrays, make_model(image_size=16))[1]


def test_our_own_files_say_what_their_grid_is(make_model, tmp_path):
    """2 x 8 and 4 x 4 have the same number of rows."""
    wide, square = make_model(seed=1, image_size=(8, 32)), make_model(seed=2, image_size=16)
    methods = {
        "a.npz": "align_corners",
        "a.safetensors": "bicubic_antialias",
        "a.weights.h5": "align_corners",
        "a.keras": "align_corners",
    }
    for name, method in methods.items():
        save = {"a.weights.h5": keras.Model.save_weights, "a.keras": keras.Model.save}.get(name)
        for source, old, model, new in (
            (wide, (2, 8), make_model(image_size=16), (4, 4)),
            (square, (4, 4), make_model(image_size=(8, 32)), (2, 8)),
        ):
            if save:
                save(source, tmp_path / name)
            else:
                keras_vit.save_weights(source, tmp_path / name, "official" if name == "a.npz" else "timm")
            (resized,) = keras_vit.load_weights(model, tmp_path / name).resized
            assert resized.endswith(f": {old[0]} x {old[1]} -> {new[0]} x {new[1]} ({method})"), name
            expected = keras_vit.resize_position_embedding(table_of(source), old, new, 1, method)
            np.testing.assert_array_equal(table_of(model), expected)


def test_a_square_is_the_rule_where_a_file_says_nothing(make_model, tmp_path):
    arrays = official_arrays(make_model(seed=1, image_size=(8, 32)), tmp_path / "a.npz")
    assert keras_vit.load_weights(make_model(), npz(tmp_path / "b.npz", arrays)).resized == ()


@pytest.mark.parametrize("text", ["[2]", "nonsense", "[2, -8]", "{}"])
def test_a_grid_that_is_none(make_model, tmp_path, text):
    keras_vit.save_weights(make_model(), tmp_path / "a.safetensors", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "b.safetensors", {"position_grid": text})
    with pytest.raises(ValueError, match="position_grid of .* must be .rows, columns."):
        keras_vit.load_weights(make_model(), tmp_path / "b.safetensors")


# Layouts and kinds of file


def test_a_layout_can_be_forced_and_is_not_mixed(make_model, arrays, tmp_path):
    path = npz(tmp_path / "a.npz", arrays)
    assert keras_vit.load_weights(make_model(), path, layout="official").used == tuple(arrays)
    with pytest.raises(ValueError, match=r"missing patch_embed.proj.weight(?s:.)*extra embedding/kernel"):
        keras_vit.load_weights(make_model(), path, layout="timm")
    with pytest.raises(
        ValueError, match=r"layout must be one of 'auto', 'official', 'timm', 'huggingface', 'microsoft', 'keras'; got"
    ):
        keras_vit.load_weights(make_model(), path, layout="flax")
    with pytest.raises(ValueError, match=r"resize must be one of 'auto', 'align_corners'"):
        keras_vit.load_weights(make_model(), path, resize="nearest")
    with pytest.raises(ValueError, match=r"head must be one of 'auto', 'load', 'reinitialise'; got head='drop'"):
        keras_vit.load_weights(make_model(), path, head="drop")


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_files_of_keras(make_model, weights_of, tmp_path, suffix):
    source = make_model(seed=1, dropout_rate=0.1, num_registers=2, qk_norm=True, layer_scale_init=1.0)
    (source.save if suffix == ".keras" else source.save_weights)(tmp_path / f"a{suffix}")
    model = make_model(seed=2, num_registers=2, qk_norm=True, layer_scale_init=1.0)
    report = keras_vit.load_weights(model, tmp_path / f"a{suffix}")
    check_equal(weights_of(model), weights_of(source))
    assert report.missing == report.reinitialised == ()
    assert all("seed_generator" in name for name in report.unused)
    assert any("GELU and epsilon" in note for note in report.notes) == (suffix == ".weights.h5")


def test_a_keras_file_of_another_architecture(make_model, weights_of, tmp_path):
    make_model(classifier="gap", num_layers=3).save_weights(tmp_path / "a.weights.h5")
    model = make_model()
    before = weights_of(model)
    with pytest.raises(ValueError) as error:
        keras_vit.load_weights(model, tmp_path / "a.weights.h5")
    lines = str(error.value).splitlines()
    assert "  - missing class_token/0 (for class_token/class_token)" in lines
    assert "  + extra block_02/mlp/dense1/0" in lines
    check_equal(weights_of(model), before)
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    dense.save(tmp_path / "b.keras")
    with pytest.raises(ValueError, match="must hold a model of keras_vit; got 'Sequential'"):
        keras_vit.load_weights(model, tmp_path / "b.keras")


def test_create_model_takes_what_a_keras_file_says(make_model, weights_of, tiny_zoo, tmp_path):
    source = make_model(seed=1, gelu="erf", epsilon=1e-4)
    source.labels = ("ant", "bee", "cat")
    source.preprocessing = keras_vit.Preprocessing(size=16, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    source.save(tmp_path / "a.keras")
    model = tiny_zoo(tmp_path / "a.keras", classes=3)
    check_equal(weights_of(model), weights_of(source))
    assert (model.config.gelu, model.config.epsilon) == ("erf", 1e-4)
    assert model.labels == ("ant", "bee", "cat")
    assert model.preprocessing == source.preprocessing
    other = tiny_zoo(tmp_path / "a.keras", classes=2, preprocessing=keras_vit.Preprocessing(size=16))
    assert other.labels is None
    assert other.preprocessing == keras_vit.Preprocessing(size=16)
    source.save_weights(tmp_path / "a.weights.h5")
    bare = tiny_zoo(tmp_path / "a.weights.h5", classes=3)
    check_equal(weights_of(bare), weights_of(source))
    assert (bare.config.gelu, bare.config.epsilon, bare.labels) == ("tanh", 1e-6, None)


def test_create_model_follows_the_file_to_its_pre_logits(make_model, weights_of, tiny_zoo, tmp_path):
    source = make_model(seed=1, representation_size=5)
    keras_vit.save_weights(source, tmp_path / "a.npz")
    check_equal(weights_of(tiny_zoo(tmp_path / "a.npz", classes=3)), weights_of(source))
    assert tiny_zoo(tmp_path / "a.npz", classes=4).config.representation_size is None
    assert tiny_zoo(tmp_path / "a.npz", classes=4).get_layer("head").kernel.shape == (8, 4)


@pytest.mark.parametrize("dtype", ["float16", "mixed_bfloat16", "bfloat16"])
def test_create_model_in_another_type(make_model, tiny_zoo, arrays, tmp_path, dtype):
    model = tiny_zoo(npz(tmp_path / "a.npz", arrays), classes=3, dtype=dtype)
    for variable, exact in zip(model.weights, make_model(seed=1).weights, strict=True):
        rounded = keras.ops.cast(exact.value, variable.dtype)
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(variable).astype("float32"),
            keras.ops.convert_to_numpy(rounded).astype("float32"),
        )
    other = make_model(dtype=dtype)
    keras_vit.load_weights(other, tmp_path / "a.npz")
    for mine, theirs in zip(other.weights, model.weights, strict=True):
        assert keras.ops.all(mine.value == theirs.value)


def test_loaded_models_share_no_memory_and_train(tiny_zoo, weights_of, arrays, tmp_path):
    """TensorFlow takes over the memory of the arrays: training must change one model's alone."""
    path = npz(tmp_path / "a.npz", arrays)
    first, second = tiny_zoo(path, classes=3), tiny_zoo(path, classes=3)
    before = weights_of(second)
    check_equal(weights_of(first), before)
    first.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
    first.fit(images, np.arange(4) % 3, verbose=0)
    after = weights_of(first)
    assert all(np.abs(after[path] - before[path]).max() > 0 for path in before if path.endswith("kernel"))
    check_equal(weights_of(second), before)


def test_scanned_blocks(make_model, weights_of, tiny_zoo, arrays, tmp_path):
    scanned = {}
    for name, array in arrays.items():
        if "encoderblock_0" in name:
            other = arrays[name.replace("encoderblock_0", "encoderblock_1")]
            scanned["params/" + name.replace("encoderblock_0", "encoderblock")] = np.stack([array, other])
        elif "encoderblock" not in name:
            scanned["params/" + name] = array
    path = npz(tmp_path / "a.npz", scanned)
    model = make_model()
    report = keras_vit.load_weights(model, path)
    assert report.used == tuple(scanned)
    check_equal(weights_of(model), weights_of(make_model(seed=1)))
    check_equal(weights_of(tiny_zoo(path, classes=3)), weights_of(model))
    with pytest.raises(ValueError, match="missing Transformer/encoderblock_2/"):
        keras_vit.load_weights(make_model(num_layers=3), path)
    scanned["params/Transformer/encoderblock/LayerNorm_0/scale"] = np.zeros((10**9, 0), "float32")
    with pytest.raises(ValueError, match=r"must stack all blocks along its first axis; got shape \(1000000000, 0\)"):
        keras_vit.load_weights(make_model(), npz(tmp_path / "b.npz", scanned))


# What comes with a Hugging Face folder


@pytest.fixture
def hub_folder(make_model, tmp_path):
    """Function of changes to config.json and preprocessor_config.json that writes a folder as transformers does."""

    def write(config=(), preprocessor=None):
        source = make_model(seed=1)
        keras_vit.save_weights(source, tmp_path / "model.safetensors", "huggingface")
        values = {"model_type": "vit", "hidden_act": "gelu", "layer_norm_eps": 1e-12, **dict(config)}
        (tmp_path / "config.json").write_text(json.dumps(values))
        if preprocessor is not None:
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
        return tmp_path

    return write


@pytest.mark.parametrize(("hidden_act", "gelu"), [("gelu", "erf"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh")])
def test_config_json(tiny_zoo, hub_folder, hidden_act, gelu):
    labels = {"10": "k", "2": "c", "1": "b"}  # as text 10 would come before 2
    model = tiny_zoo(hub_folder({"hidden_act": hidden_act, "layer_norm_eps": 1e-5, "id2label": labels}), classes=3)
    assert (model.config.gelu, model.config.epsilon) == (gelu, 1e-5)
    assert model.labels == ("b", "c", "k")


def test_placeholder_labels_are_none(tiny_zoo, hub_folder):
    assert (
        tiny_zoo(hub_folder({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}), classes=3).labels is None
    )


def test_labels_are_dropped_with_the_head(tiny_zoo, hub_folder):
    labels = {"0": "a", "1": "b", "2": "c"}
    assert tiny_zoo(hub_folder({"id2label": labels}), classes=2).labels is None
    assert tiny_zoo(hub_folder({"id2label": labels}), classes=3, labels=("x", "y", "z")).labels == (
        "x",
        "y",
        "z",
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"size": 384, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
            keras_vit.Preprocessing(size=384, interpolation="bilinear_antialias"),
        ),
        (
            {
                "size": {"height": 16, "width": 16},
                "resample": 3,
                "image_mean": [0.1] * 3,
                "image_std": [0.2] * 3,
            },
            keras_vit.Preprocessing(size=16, interpolation="bicubic", mean=(0.1,) * 3, std=(0.2,) * 3),
        ),
        (
            {"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16}, "do_center_crop": True},
            keras_vit.Preprocessing(size=18, crop=16, interpolation="bilinear_antialias"),
        ),
        ({"size": 16, "resample": 0}, keras_vit.Preprocessing(size=16, interpolation="nearest")),
    ],
)
def test_preprocessor_config_json(tiny_zoo, hub_folder, values, expected):
    assert tiny_zoo(hub_folder(preprocessor=values), classes=3).preprocessing == expected.at(16)


@pytest.mark.parametrize(
    ("config", "preprocessor", "words"),
    [
        ({"model_type": "swin"}, None, r"config\.json' must be of model_type 'vit' or 'deit'; got 'swin'"),
        ({"hidden_act": "relu"}, None, r"hidden_act of config\.json must be one of .*'gelu'.*; got 'relu'"),
        ({"hidden_act": "quick_gelu"}, None, r"got 'quick_gelu'"),
        ({"id2label": {"a": "b"}}, None, r"id2label of config\.json must have integer keys; got \['a'\]"),
        ({"id2label": ["0"]}, None, "not as it should be"),
        ({"layer_norm_eps": [1]}, None, "not as it should be"),
        ({}, {"resample": 1}, r"resample of preprocessor_config\.json must be one of \[0, 2, 3\]; got 1"),
        ({}, {"size": {"width": 3}}, "not as it should be: KeyError"),
        ({}, {"image_mean": 3}, "not as it should be"),
    ],
)
def test_a_config_that_is_wrong(make_model, hub_folder, config, preprocessor, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.load_weights(make_model(), hub_folder(config, preprocessor))


def test_thousand_classes_of_a_nameless_file_are_imagenet(make_model, tiny_zoo, tmp_path, capsys):
    keras_vit.save_weights(make_model(classes=1000), tmp_path / "a.npz")
    model = tiny_zoo(tmp_path / "a.npz", classes=1000)
    assert model.labels == label_set("imagenet2012")
    assert "note: 1000 classes: the labels are taken to be ImageNet-2012's" in capsys.readouterr().out
    assert model.preprocessing == keras_vit.Preprocessing(size=16)
