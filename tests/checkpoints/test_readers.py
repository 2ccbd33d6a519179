"""Every kind of file gives its arrays back, exactly and lazily."""

import os
import tracemalloc

import h5py
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import ARRAYS, archive, check_equal, npy, read_all

from keras_vit.checkpoints import npz
from keras_vit.checkpoints.readers import open_checkpoint

BFLOAT16 = np.random.default_rng(1).normal(size=(4, 3)).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    checkpoint = open_checkpoint(tmp_path / "a.npz")
    assert (checkpoint.kind, checkpoint.metadata, checkpoint.config_json) == ("npz", {}, None)
    assert {name: entry.shape for name, entry in checkpoint.entries.items()} == {
        "a/kernel": (3, 4),
        "a/bias": (5,),
        "scalar": (),
    }
    check_equal(read_all(tmp_path / "a.npz"), ARRAYS)


def test_npz_in_fortran_order_in_version_2_and_without_elements(tmp_path):
    matrix = np.asfortranarray(ARRAYS["a/kernel"])
    empty = np.zeros((0, 4), "float32")
    members = {"f.npy": npy(matrix), "v2.npy": npy(matrix[0], version=(2, 0)), "e.npy": npy(empty)}
    check_equal(read_all(archive(tmp_path / "a.npz", members)), {"f": matrix, "v2": matrix[0], "e": empty})


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_other_floating_types_become_float32(tmp_path, dtype):
    array = np.random.default_rng(2).normal(size=(2, 3)).astype(dtype)
    np.savez(tmp_path / "a.npz", a=array)
    check_equal(read_all(tmp_path / "a.npz"), {"a": array})


def test_integers_stay_what_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", step=np.array([3, -4], "int64"))
    step = read_all(tmp_path / "a.npz")["step"]
    assert step.dtype == np.int64 and step.tolist() == [3, -4]


def test_bfloat16_that_numpy_stored_as_void(tmp_path):
    np.savez(tmp_path / "a.npz", a=BFLOAT16)
    with np.load(tmp_path / "a.npz") as stored:
        assert stored["a"].dtype == np.dtype("V2")
    check_equal(read_all(tmp_path / "a.npz"), {"a": BFLOAT16})


def test_safetensors_with_bfloat16_metadata_and_configs(tmp_path):
    arrays = {**ARRAYS, "half": BFLOAT16}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors", {"position_grid": "[2, 3]"})
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "preprocessor_config.json").write_text('{"size": 224}')
    check_equal({name: array for name, array in sorted(read_all(tmp_path).items())}, dict(sorted(arrays.items())))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.path == tmp_path / "model.safetensors"
    assert checkpoint.kind == "safetensors"
    assert checkpoint.metadata == {"position_grid": "[2, 3]"}
    assert checkpoint.config_json == {"model_type": "vit"}
    assert checkpoint.processor == {"size": 224}


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_files_of_keras(tmp_path, make_model, suffix):
    model = make_model()
    path = tmp_path / f"m{suffix}"
    (model.save_weights if suffix == ".weights.h5" else model.save)(path)
    arrays = read_all(path)
    np.testing.assert_array_equal(arrays["head/0"], model.get_layer("head").kernel.numpy())
    np.testing.assert_array_equal(arrays["block_01/mlp/dense2/1"], model.get_layer("block_01").mlp.dense2.bias.numpy())
    assert arrays["position_embs/grid"].tolist() == [4, 4]
    assert len(arrays) == len(model.weights) + 1  # the grid
    config = open_checkpoint(path).config_json
    assert config is None if suffix == ".weights.h5" else config["config"]["config"]["hidden_dim"] == 8


def test_a_file_of_keras_can_be_written_again_after_it_was_read(tmp_path, make_model):
    path = tmp_path / "m.weights.h5"
    make_model().save_weights(path)
    read_all(path)
    with h5py.File(path, "w") as file:  # HDF5 refuses this while the file is open elsewhere
        file["x"] = 1
    with pytest.raises(ValueError, match="'layers'"):
        open_checkpoint(path)
    with h5py.File(path, "w"):
        pass


@pytest.mark.parametrize("kind", ["npz", "safetensors", "weights.h5"])
def test_opening_reads_no_array(tmp_path, kind):
    array = np.ones((512, 1024), "float32")  # 2 MiB each
    path = tmp_path / f"a.{kind}"
    if kind == "npz":
        np.savez(path, a=array, b=array)
    elif kind == "safetensors":
        safetensors.numpy.save_file({"a": array, "b": array}, path)
    else:
        with h5py.File(path, "w") as file:
            for name in "ab":
                file.create_group(f"layers/{name}/vars").attrs["name"] = name
                file[f"layers/{name}/vars/0"] = array
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 0.5 * array.nbytes
        read = next(iter(checkpoint.entries.values())).read()
        most = {"npz": 0.1, "safetensors": 0.1, "weights.h5": 2.6}[kind] * array.nbytes  # only that of h5py is traced
        assert tracemalloc.get_traced_memory()[1] < most
        assert read.flags.writeable == (kind != "safetensors")  # a view of the mapped file
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(read, array)


def test_a_checked_npz_that_changes_is_checked_again(tmp_path):
    path, array = tmp_path / "a.npz", np.arange(3000.0, dtype="float32")
    np.savez(path, a=array)
    entry = open_checkpoint(path).entries["a"]
    entry.check()
    np.testing.assert_array_equal(entry.read(), array)
    content = bytearray(path.read_bytes())
    content[content.index(array.tobytes())] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # a clock may be coarse
    with pytest.raises(ValueError, match="array 'a' is damaged: Bad CRC-32"):
        entry.read()


def test_npz_reads_each_array_when_it_is_asked_for(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    asked, fill = [], npz._Member._fill

    def watched(self, place):
        asked.append(self._member.filename)
        fill(self, place)

    monkeypatch.setattr(npz._Member, "_fill", watched)
    entries = open_checkpoint(tmp_path / "a.npz").entries
    assert asked == []
    entries["a/bias"].read()
    assert asked == ["a/bias.npy"]
