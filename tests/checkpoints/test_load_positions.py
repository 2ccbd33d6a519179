"""load_weights: position tables of another grid, with and without rows for other tokens."""

import json
import pathlib
import shutil
import tracemalloc

import h5py
import keras
import numpy as np
import pytest
import safetensors.numpy
from faults import for_each
from official_files import TABLE, npz, official_arrays

import keras_vit
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.config.unseen import KEY
from keras_vit.layers.position_grid import resize_position_embedding
from keras_vit.variants import VARIANTS

to_numpy = keras.ops.convert_to_numpy


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


@for_each("grid", [[2], "nonsense", [2, -8], {}])
def test_a_grid_that_is_none(make_model, tmp_path, grid):
    keras_vit.save_weights(make_model(), tmp_path / "a.safetensors", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "b.safetensors", {KEY: json.dumps({"grid_size": grid})})
    with pytest.raises(ValueError, match="the metadata of .*grid_size must be one"):
        keras_vit.load_weights(make_model(), tmp_path / "b.safetensors")


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_a_table_is_bounded_before_it_is_read(make_kind, weights_of, tmp_path, kind):
    """A few kilobytes of a deflated archive stand for gigabytes."""
    layout, suffix = ("official", ".npz") if kind == "vit" else ("timm", ".safetensors")
    path, model = tmp_path / f"a{suffix}", make_kind(kind, seed=2)
    keras_vit.save_weights(make_kind(kind, seed=1), path, layout)
    read = np.load if kind == "vit" else safetensors.numpy.load_file
    arrays = dict(read(path))
    name = TABLE if kind == "vit" else "layers.0.blocks.0.attn.relative_position_bias_table"
    shape = list(arrays[name].shape)
    shape[1 if kind == "vit" else 0] = 1000 * 1000 + (kind == "vit")
    arrays[name] = np.zeros(shape, "float32")
    if kind == "vit":
        np.savez_compressed(path, **arrays)
    else:
        safetensors.numpy.save_file(arrays, path)
    del arrays
    before = weights_of(model)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"has more than 64 times the values of the model's \("):
        keras_vit.load_weights(model, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**20  # the table of the smaller takes 4
    after = weights_of(model)
    assert all(np.array_equal(after[path], before[path]) for path in before)


def test_a_grid_of_64_times_the_area_is_still_resized(make_model, tmp_path):
    keras_vit.save_weights(make_model(seed=1, image_size=124), tmp_path / "a.npz")
    assert len(keras_vit.load_weights(make_model(image_size=16), tmp_path / "a.npz").resized) == 1


def test_a_stored_grid_is_a_pair(make_model, tmp_path):
    make_model().save_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5", "r+") as file:
        group = file["layers/add_position_embs/vars"]
        del group["grid"]
        group.create_dataset("grid", shape=(2**28,), dtype="int64", chunks=(2**16,), compression="gzip")
    with pytest.raises(ValueError, match="grid"):
        keras_vit.load_weights(make_model(), tmp_path / "a.weights.h5")


def test_an_image_size_that_the_patches_do_not_divide(tmp_path, caplog):
    """transformers' SigLIP of 32 pixels and patches of 8: one of 37 pixels has the same table and reads 32 of them."""
    golden, folder = pathlib.Path(__file__).parents[1] / "golden" / "siglip_hf_map", tmp_path / "siglip"
    shutil.copytree(golden, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "image_size": 37}))
    processor = {"size": {"height": 37, "width": 37}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    with np.load(golden / "io.npz") as case:
        images, expected = case["images"], case["logits"]
    images = np.pad(images, ((0, 0), (0, 5), (0, 5), (0, 0)), constant_values=7.0)
    with caplog.at_level("INFO", "keras_vit"):
        model = keras_vit.load(folder)
    assert (
        "the patches cover the top left 32 x 32 pixels of an image of 37 x 37; the others are not used" in caplog.text
    )
    assert keras_vit.load(folder, image_size=32).config.image_size == (32, 32)
    assert keras_vit.load(folder, image_size="any").preprocessing.image_size == (37, 37)
    for layout, name in (("huggingface", "again"), ("timm", "a.safetensors"), ("official", "a.npz")):
        assert model.config.image_size == model.preprocessing.image_size == (37, 37)
        np.testing.assert_allclose(to_numpy(model(images)), expected, atol=2e-5)
        keras_vit.save_weights(model, tmp_path / name, layout)
        model = keras_vit.load(tmp_path / name, **({} if layout == "huggingface" else {"variant": "siglip"}))
    assert json.loads((tmp_path / "again" / "config.json").read_text())["image_size"] == 37
    foreign = [find_foreign(f"google/{name}-so400m-patch14-384") for name in ("siglip", "siglip2")]
    assert [(row.image_size, VARIANTS[row.variant].config(image_size=384).grid_size) for row in foreign] == [
        (384, (27, 27))
    ] * 2


def test_padded_patches_come_back(make_model, tmp_path):
    """The table of 18 pixels in padded patches of 4 has 5 x 5 rows; so has that of 20 pixels."""
    source = keras_vit.resize(make_model(seed=1), 18, pad=True)
    images = np.random.default_rng(0).normal(size=(2, 18, 18, 3)).astype("float32")
    for layout, name in (("official", "a.npz"), ("timm", "a.safetensors")):
        keras_vit.save_weights(source, tmp_path / name, layout)
        loaded = keras_vit.load(tmp_path / name)
        assert loaded.config.image_size == (18, 18) and loaded.config.embedding.pad
        np.testing.assert_array_equal(to_numpy(loaded(images)), to_numpy(source(images)))


def test_a_model_keeps_the_method_that_it_was_given(make_model, tmp_path):
    """Wherever it is resized, in whichever order; a SigLIP's own method is bicubic without antialiasing."""
    size, parts = (24, 12), {"resize": "bicubic"}
    siglip = {"pooling": "map", "include_top": False, "embedding": parts, "gelu": "tanh"}
    source, again = make_model(seed=1, **siglip), {"variant": "siglip", "num_heads": 2}
    keras_vit.save_weights(source, tmp_path / "a.npz")
    given = keras_vit.load(tmp_path / "a.npz", resize="timm", **again)
    given.save(tmp_path / "a.keras")
    given.save_weights(tmp_path / "a.weights.h5")
    for layout, name in (("timm", "b.safetensors"), ("official", "b.npz")):
        keras_vit.save_weights(given, tmp_path / name, layout)
    loaded, every = make_model(seed=2, **siglip), keras_vit.resize(make_model(seed=2, **siglip), "any")
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    for model in (loaded, every):
        keras_vit.load_weights(model, tmp_path / "a.npz", resize="timm")
    found = {
        "load, then resize": keras_vit.resize(given, size),
        "and back": keras_vit.resize(keras_vit.resize(source, 16, "bicubic_antialias"), size),
        ".keras": keras_vit.resize(keras_vit.load(tmp_path / "a.keras"), size),
        "load_weights, then resize": keras_vit.resize(loaded, size),
        **{name: keras_vit.load(tmp_path / name, image_size=size, **again) for name in ("b.safetensors", "b.npz")},
    }
    table = resize_position_embedding(table_of(source), (4, 4), (6, 3), 0, "bicubic_antialias")
    for way, model in found.items():
        assert model.config.embedding.resize == "bicubic_antialias", way
        np.testing.assert_allclose(table_of(model), table, atol=1e-6, err_msg=way)
    expected = to_numpy(found["b.npz"](images))
    for model in (every, keras_vit.load(tmp_path / "b.npz", image_size="any", **again)):
        np.testing.assert_allclose(to_numpy(model(images)), expected, atol=2e-6)
    assert keras_vit.resize(given, "native").config.embedding.resize == "bicubic_antialias"
    assert keras_vit.resize(source, size).config.embedding.resize == "bicubic"
    plain = make_model(seed=1)  # without a method of its own
    keras_vit.save_weights(keras_vit.resize(plain, 16, "bicubic_antialias"), tmp_path / "p.npz")
    report, other = keras_vit.load_weights(model := make_model(image_size=size), tmp_path / "p.npz"), table_of(plain)
    assert not [note for note in report.notes if "resize" in note] and model.config.embedding.resize
    table = resize_position_embedding(other[:, 1:], (4, 4), (6, 3), 0, "bicubic_antialias")
    np.testing.assert_allclose(table_of(model)[:, 1:], table, atol=1e-6)
    report = keras_vit.load_weights(make_model(**siglip), tmp_path / "a.weights.h5")
    assert report.notes == ("the file states embedding.resize='bicubic_antialias'; the model has 'bicubic'",)
    parts = {"position_grid": 4, "resize": "bilinear"}
    naflex = make_model(position_embedding="factorized", pooling="gap", num_registers=1, embedding=parts)
    keras_vit.save_weights(naflex, tmp_path / "c.safetensors", "timm")
    naflex = keras_vit.load(tmp_path / "c.safetensors", resize="bilinear_antialias", image_size=size, num_heads=2)
    assert naflex.get_layer("position_embs").resize_method == naflex.config.embedding.resize == "bilinear_antialias"
    for call, message in (
        (
            lambda: keras_vit.load(tmp_path / "a.npz", resize="bicubci"),
            "resize must be one of .*did you mean 'bicubic'",
        ),
        (lambda: keras_vit.load(tmp_path / "a.keras", resize="timm"), "states its whole model.*got 'timm'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
