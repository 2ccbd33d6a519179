"""Every kind of file gives its arrays back exactly and lazily; a damaged or hostile one gives a clear ValueError."""

import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_vit.checkpoints import json_object, npz
from keras_vit.checkpoints.readers import open_checkpoint

RNG = np.random.default_rng(0)
ARRAYS = {
    "a/kernel": RNG.normal(size=(3, 4)).astype("float32"),
    "a/bias": RNG.normal(size=5).astype("float32"),
    "scalar": np.array(7.5, "float32"),
}
BFLOAT16 = RNG.normal(size=(4, 3)).astype(ml_dtypes.bfloat16)
FUZZED = 300


def write(path, content):
    path.write_bytes(content)
    return path


def npy(array, **kwargs):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), **kwargs)
    return buffer.getvalue()


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def read_all(path):
    return {name: entry.read() for name, entry in open_checkpoint(path).entries.items()}


def check_equal(read, expected):
    assert list(read) == list(expected)
    for name, array in expected.items():
        assert read[name].dtype == np.float32
        np.testing.assert_array_equal(read[name], np.asarray(array, "float32"), err_msg=name)


# What is read


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    checkpoint = open_checkpoint(tmp_path / "a.npz")
    assert (checkpoint.kind, checkpoint.metadata, checkpoint.config) == ("npz", {}, None)
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
    array = RNG.normal(size=(2, 3)).astype(dtype)
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
    assert checkpoint.config == {"model_type": "vit"}
    assert checkpoint.preprocessor == {"size": 224}


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
    config = open_checkpoint(path).config
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


# Lazily


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
        assert array.nbytes <= tracemalloc.get_traced_memory()[1] < 2.6 * array.nbytes
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(read, array)


def test_npz_reads_each_array_when_it_is_asked_for(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    asked, read_array = [], npz._read_array

    def watched(*args):
        asked.append(next(arg.filename for arg in args if isinstance(arg, zipfile.ZipInfo)))
        return read_array(*args)

    monkeypatch.setattr(npz, "_read_array", watched)
    entries = open_checkpoint(tmp_path / "a.npz").entries
    assert asked == []
    entries["a/bias"].read()
    assert asked == ["a/bias.npy"]


# What is refused


class Explosive:
    def __reduce__(self):
        return (os.putenv, ("KERAS_VIT_EXPLODED", "1"))


def refused(path, *words):
    with pytest.raises(ValueError) as error:
        read_all(path)
    for word in (str(path), *words):
        assert word in str(error.value)


def test_a_pickled_object_is_never_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle, "load", lambda *args, **kwargs: pytest.fail("unpickled"))
    members = {"good.npy": npy(ARRAYS["a/bias"]), "bad.npy": npy(np.array([Explosive()], object))}
    refused(archive(tmp_path / "a.npz", members), "'bad.npy'", "Python objects", "never unpickled")


@pytest.mark.parametrize("array", [np.array(["text"]), np.array(["1"], "M8[Y]"), np.zeros(2, "i4,f4"), np.array([1j])])
def test_arrays_of_no_numbers(tmp_path, array):
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(ValueError, match=r"array 'x' must hold numbers; got dtype"):
        read_all(tmp_path / "a.npz")


@pytest.mark.parametrize("shape", [(4, 4), (2, 4), (10**9, 10**9), (-3, -4), (3, 4, 0)])
def test_a_header_that_contradicts_the_size(tmp_path, shape):
    content = npy(ARRAYS["a/kernel"])
    start = content.index(b"(3, 4)")
    text = str(shape).encode()
    header = content[:start] + text + content[start + 6 :]
    length = struct.unpack("<H", header[8:10])[0]
    padding = header.index(b"   ")  # the header's length stays what it was
    header = header[:padding] + header[padding + len(text) - 6 :]
    assert struct.unpack("<H", header[8:10])[0] == length
    refused(archive(tmp_path / "a.npz", {"x.npy": header}), "'x.npy'", f"float32 of shape {shape}", "48 bytes")


@pytest.mark.parametrize("header", [b"{'descr': [}", b"(" * 200, b"{[]: 1}", b"\xff'", b"'''", b"{'a': 1}"])
def test_a_header_that_is_none(tmp_path, header):
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    refused(archive(tmp_path / "a.npz", {"x.npy": content}), "'x.npy' must be a .npy array")


def test_truncated_npz(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    content = (tmp_path / "a.npz").read_bytes()
    refused(write(tmp_path / "a.npz", content[:-100]), "whole .npz", "first bytes are b'PK")


def test_damaged_member(tmp_path):
    large = RNG.normal(size=10**4).astype("float32")  # more than zipfile reads for the header
    path = archive(tmp_path / "a.npz", {"x.npy": npy(ARRAYS["a/kernel"]), "y.npy": npy(large)})
    content = bytearray(path.read_bytes())
    content[content.index(large[-10:].tobytes())] ^= 1
    entries = open_checkpoint(write(path, content)).entries
    np.testing.assert_array_equal(entries["x"].read(), ARRAYS["a/kernel"])
    with pytest.raises(ValueError, match=r"a\.npz.*array 'y' is damaged: .*(CRC|checksum)"):
        entries["y"].read()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".weights.h5", ".keras"])
@pytest.mark.parametrize("content", [b"", b"hello, I am a text\n", b"<!DOCTYPE html><html>"])
def test_something_else_under_a_known_suffix(tmp_path, suffix, content):
    refused(write(tmp_path / f"a{suffix}", content), "must be a whole", repr(content[:16]))


def test_a_zip_with_other_members(tmp_path):
    path = archive(tmp_path / "a.npz", {"x.npy": npy(ARRAYS["a/bias"]), "readme.txt": b"hello"})
    refused(path, ".npy array", "'readme.txt'")


def test_a_name_twice(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
            file.writestr("x.npy", npy(ARRAYS["a/bias"]))
            file.writestr("x.npy", npy(ARRAYS["a/kernel"]))
    refused(tmp_path / "a.npz", "every array once", "'x' twice")


def test_another_compression(tmp_path):
    path = archive(tmp_path / "a.npz", {"x.npy": npy(ARRAYS["a/bias"])}, zipfile.ZIP_LZMA)
    refused(path, "stored or deflated", "14")


def test_an_encrypted_member(tmp_path):
    path = archive(tmp_path / "a.npz", {"x.npy": npy(ARRAYS["a/bias"])})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    refused(write(path, content), "encrypted")


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt", ".pkl"])
def test_pickles_are_refused_with_advice(tmp_path, suffix):
    refused(write(tmp_path / f"a{suffix}", b"x"), "pickle", "safetensors.torch.save_file")


def test_unknown_suffix_and_missing_file(tmp_path):
    refused(write(tmp_path / "a.onnx", b"x"), ".npz, .safetensors, .weights.h5, .keras or a folder")
    with pytest.raises(FileNotFoundError, match=r"existing file or folder; got '.*b\.npz'"):
        open_checkpoint(tmp_path / "b.npz")
    with pytest.raises(FileNotFoundError, match="must hold model.safetensors"):
        open_checkpoint(tmp_path)


def test_errors_of_the_disk_are_not_called_damage(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **ARRAYS)

    def broken(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(zipfile, "ZipFile", broken)
    with pytest.raises(PermissionError):
        open_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "content, words",
    [
        (b"{", "must be JSON"),
        (b"[1]", "JSON object; got list"),
        (b"\xff", "must be JSON"),
        (b"[" * 10**5, "JSON"),
    ],
)
def test_a_config_that_is_none(tmp_path, content, words):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.safetensors")
    write(tmp_path / "config.json", content)
    with pytest.raises(ValueError, match=rf"config\.json.*{words}"):
        open_checkpoint(tmp_path)


def test_a_config_that_is_too_large(tmp_path, monkeypatch):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.safetensors")
    write(tmp_path / "config.json", json.dumps({"a": "b" * 1000}).encode())
    monkeypatch.setattr(json_object, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"config\.json' must not exceed 1000 bytes; got 1009"):
        open_checkpoint(tmp_path)


def test_a_keras_file_without_weights_or_with_packed_ones(tmp_path, make_model):
    refused(archive(tmp_path / "a.keras", {"config.json": b"{}"}), "whole .keras", "model.weights.h5")
    make_model().save(tmp_path / "b.keras")
    with zipfile.ZipFile(tmp_path / "b.keras") as file:
        members = {name: file.read(name) for name in file.namelist()}
    refused(archive(tmp_path / "c.keras", members, zipfile.ZIP_DEFLATED), "stored uncompressed")
    refused(archive(tmp_path / "d.keras", {**members, "config.json": b"]"}), "config.json must be JSON")
    content = bytearray((tmp_path / "b.keras").read_bytes())
    content[len(content) // 2] ^= 1
    refused(write(tmp_path / "e.keras", content), "Bad CRC-32")


# HDF5 can point outside of itself


def h5(path, fill):
    with h5py.File(path, "w") as file:
        variables = file.create_group("layers/dense/vars")
        variables.attrs["name"] = "head"
        fill(file, variables)
    return path


@pytest.fixture
def secret(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["array"] = np.ones(4, "float32")
        file.create_group("group/vars")["0"] = np.ones(4, "float32")
    write(tmp_path / "secret.raw", np.ones(4, "float32").tobytes())
    return tmp_path


def external_dataset(file, variables):
    variables["0"] = h5py.ExternalLink("secret.h5", "/array")


def external_layer(file, variables):
    file["layers/other"] = h5py.ExternalLink("secret.h5", "/group")


def soft_link(file, variables):
    variables["0"] = h5py.SoftLink("/layers")


def external_storage(file, variables):
    variables.create_dataset("0", (4,), "float32", external=[("secret.raw", 0, 16)])


def virtual(file, variables):
    layout = h5py.VirtualLayout((4,), "float32")
    layout[:] = h5py.VirtualSource("secret.h5", "array", (4,))
    variables.create_virtual_dataset("0", layout)


@pytest.mark.parametrize("fill", [external_dataset, external_layer, soft_link, external_storage, virtual])
def test_hdf5_never_leaves_its_file(secret, fill, monkeypatch):
    monkeypatch.chdir(secret)  # where HDF5 would find the other file
    refused(h5(secret / "a.weights.h5", fill), "must hold its arrays itself")


def test_hdf5_with_a_group_inside_itself(tmp_path):
    def fill(file, variables):
        variables["0"] = np.ones(4, "float32")
        file["layers/dense/inner"] = file["layers/dense"]

    refused(h5(tmp_path / "a.weights.h5", fill), "every group once")


@pytest.mark.parametrize("options", [{}, {"chunks": (10, 10), "compression": "gzip"}])
def test_hdf5_that_claims_more_than_it_holds(tmp_path, options):
    def fill(file, variables):
        variables.create_dataset("0", (10**6, 10**6), "float32", **options)

    refused(h5(tmp_path / "a.weights.h5", fill), "(1000000, 1000000) needs 4000000000000 bytes, not 0")


def test_hdf5_with_an_endless_heap(tmp_path, make_model):
    path = tmp_path / "a.weights.h5"
    make_model().save_weights(path)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL\1\0\0\0")
    content[heap + 16 : heap + 32] = bytes(16)  # free space of 0 bytes, after which libhdf5 looks at the same place
    refused(write(path, content), "global heap is damaged")


def test_compressed_hdf5_is_read(tmp_path):
    def fill(file, variables):
        variables.create_dataset("0", data=np.zeros((100, 100), "float32"), chunks=(100, 100), compression="gzip")

    assert read_all(h5(tmp_path / "a.weights.h5", fill))["head/0"].shape == (100, 100)


# Random damage: a ValueError or the arrays, nothing else


def flips(content, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        damaged = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        yield bytes(damaged[: rng.integers(len(content))] if rng.random() < 0.1 else damaged)


def content_of(kind, path):
    if kind == "safetensors":
        safetensors.numpy.save_file(ARRAYS, path)
    else:
        (np.savez_compressed if kind == "compressed" else np.savez)(path, **ARRAYS)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["npz", "compressed", "safetensors", "keras"])
def test_random_damage(tmp_path, make_model, kind):
    path = tmp_path / f"a.{kind if kind in ('safetensors', 'keras') else 'npz'}"
    if kind == "keras":
        make_model(num_layers=1).save(path)
        content = path.read_bytes()
    else:
        content = content_of(kind, path)
    refusals, peak = 0, 0
    tracemalloc.start()
    try:
        for damaged in flips(content, FUZZED):
            tracemalloc.reset_peak()
            try:
                read_all(write(path, damaged))
            except ValueError:
                refusals += 1
            peak = max(peak, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert refusals > FUZZED / 4
    assert peak < 4 * 2**20


def test_random_damage_of_hdf5(tmp_path, make_model):
    """In a process of its own, for libhdf5 has no checksums and cannot be interrupted."""
    make_model(num_layers=1).save_weights(tmp_path / "base.weights.h5")
    code = f"""
        import pathlib, sys
        sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}, {str(pathlib.Path(__file__).parents[2])!r}]
        import test_readers
        folder, refusals = pathlib.Path({str(tmp_path)!r}), 0
        for number, content in enumerate(test_readers.flips((folder / "base.weights.h5").read_bytes(), {FUZZED})):
            path = folder / f"{{number}}.weights.h5"
            path.write_bytes(content)
            try:
                test_readers.read_all(path)
            except ValueError:
                refusals += 1
            path.unlink()
        print("refusals", refusals)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) > FUZZED / 20
