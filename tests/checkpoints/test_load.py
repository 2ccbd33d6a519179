"""load_weights and create_model: a strict merge, and what is said about it."""

import re
import zipfile

import keras
import numpy as np
import pytest
from official_files import KERNEL, TABLE, check_equal, npz

import keras_vit
from keras_vit.checkpoints import npz as npz_reader


def test_everything_is_loaded_and_reported(make_model, weights_of, arrays, tmp_path, caplog):
    model = make_model(seed=2)
    report = keras_vit.load_weights(model, npz(tmp_path / "a.npz", arrays))
    check_equal(weights_of(model), weights_of(make_model(seed=1)))
    assert isinstance(report, keras_vit.LoadReport)
    assert report.used == tuple(arrays)
    assert (report.resized, report.reinitialised, report.missing, report.notes) == ((), (), (), ())
    assert report.unused == {}
    assert report.source == f"{tmp_path / 'a.npz'} (official names)"
    assert report.assumed == ("gelu='tanh'", "epsilon=1e-06")
    assumed = "  assumed, as the file does not state them: gelu='tanh', epsilon=1e-06"
    assert caplog.messages == [f"Loaded {len(arrays)} arrays of {report.source}\n{assumed}"]


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
    assert refused(arrays)[1:] == [f"  - missing {name} (for block_00/attention/qkv/kernel)"]


def test_a_deeper_and_a_narrower_model(refused, make_model, arrays):
    lines = refused(arrays, make_model(num_layers=3))
    assert len(lines) == 1 + 12
    assert all(line.startswith("  - missing Transformer/encoderblock_2/") for line in lines[1:])
    lines = refused(arrays, make_model(hidden_dim=4))
    assert f"  ! {TABLE}: float32 of shape (1, 17, 8), the model needs floating point of shape (1, rows, 4)" in lines
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


def test_damage_of_a_compressed_array_changes_nothing(make_model, weights_of, tmp_path):
    path, model = tmp_path / "a.npz", make_model(seed=2, classes=3000)
    keras_vit.save_weights(model, path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez_compressed(path, **arrays)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        last = archive.infolist()[-1]
    content[content.rindex(b"PK\x01\x02") + 16] ^= 1  # the checksum, as the archive's directory states it
    path.write_bytes(content)
    before = weights_of(model)
    with pytest.raises(ValueError, match=f"array '{last.filename.removesuffix('.npy')}' is damaged: Bad CRC-32"):
        keras_vit.load_weights(model, path)
    check_equal(weights_of(model), before)


def test_few_arrays_wait_for_their_variables(make_model, tmp_path, monkeypatch):
    path, done = tmp_path / "a.npz", []
    keras_vit.save_weights(make_model(), path)
    read, assign = npz_reader._Member.read, keras.Variable.assign
    monkeypatch.setattr(npz_reader._Member, "read", lambda self: (done.append("read"), read(self))[1])
    model = make_model(seed=2)
    monkeypatch.setattr(keras.Variable, "assign", lambda *arguments: (done.append("assigned"), assign(*arguments)))
    keras_vit.load_weights(model, path)
    assert 1 <= done.index("assigned") <= 10 < done.count("read")


def test_create_model_raises_as_well_and_leaves_keras_as_it_was(tiny_zoo, arrays, tmp_path):
    del arrays["Transformer/encoderblock_1/LayerNorm_0/bias"]
    with pytest.raises(ValueError, match="missing Transformer/encoderblock_1/LayerNorm_0/bias"):
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


def test_printed_report(tmp_path):
    report = keras_vit.LoadReport(
        used=("a", "b"),
        resized=("pos: 4 x 4 -> 2 x 2 (bilinear)",),
        reinitialised=("head/kernel", "head/bias"),
        unused={f"u{number}": "a buffer" if number else "of a head" for number in range(8)},
        missing=(),
        source="file.npz (official names)",
        notes=("one", "two"),
    )
    assert str(report) == (
        "Loaded 2 arrays of file.npz (official names)\n"
        "  resized: pos: 4 x 4 -> 2 x 2 (bilinear)\n"
        "  new head: head/kernel, head/bias start at zero; the file has no head\n"
        "  unused (of a head): u0\n"
        "  unused (a buffer): u1, u2, u3, u4, u5, u6 and 1 more\n"
        "  note: one\n"
        "  note: two"
    )


def test_notes_on_another_gelu_and_epsilon(make_model, arrays, tmp_path, caplog):
    report = keras_vit.load_weights(make_model(gelu="erf", epsilon=1e-5), npz(tmp_path / "a.npz", arrays))
    assert report.notes == (
        "files of this layout have gelu='tanh'; the model has 'erf'",
        "files of this layout have epsilon=1e-06; the model has 1e-05",
    )
    assert "  note: files of this layout have gelu='tanh'; the model has 'erf'\n" in caplog.text


def test_a_huggingface_file_without_config_says_what_is_assumed(make_model, tiny_zoo, save_foreign, tmp_path):
    save_foreign(make_model(), tmp_path / "a.safetensors", "huggingface")
    report = keras_vit.load_weights(make_model(), tmp_path / "a.safetensors")
    assert report.assumed == ("num_heads=2", "gelu='tanh'", "epsilon=1e-06")
    assert "files of this layout have gelu='erf'; the model has 'tanh'" in report.notes
    config = tiny_zoo(tmp_path / "a.safetensors", classes=3).config
    assert (config.gelu, config.epsilon) == ("erf", 1e-12)


def test_the_family_decides_gelu_and_epsilon_unless_they_are_given(make_model, tiny_zoo, save_foreign, tmp_path):
    save_foreign(make_model(), tmp_path / "a.safetensors", "timm")
    config = tiny_zoo(tmp_path / "a.safetensors", classes=3).config
    assert (config.gelu, config.epsilon) == ("erf", 1e-6)
    config = tiny_zoo(tmp_path / "a.safetensors", classes=3, gelu="tanh", epsilon=1e-3).config
    assert (config.gelu, config.epsilon) == ("tanh", 1e-3)


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
    first.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
    first.fit(images, np.arange(4) % 3, verbose=0)
    after = weights_of(first)
    assert all(np.abs(after[path] - before[path]).max() > 0 for path in before if path.endswith("kernel"))
    check_equal(weights_of(second), before)
