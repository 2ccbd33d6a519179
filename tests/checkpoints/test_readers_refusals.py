"""A hostile file, a damaged one and one of another kind give a clear ValueError."""

import json
import os
import pickle
import struct
import warnings
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import ARRAYS, archive, npy, read_all, refused, write
from faults import for_each

from keras_vit import files
from keras_vit.checkpoints.readers import open_checkpoint


class Explosive:
    def __reduce__(self):
        return (os.putenv, ("KERAS_VIT_EXPLODED", "1"))


def test_a_pickled_object_is_never_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle, "load", lambda *args, **kwargs: pytest.fail("unpickled"))
    members = {"good.npy": npy(ARRAYS["a/bias"]), "bad.npy": npy(np.array([Explosive()], object))}
    refused(archive(tmp_path / "a.npz", members), "'bad.npy'", "Python objects", "never unpickled")


@for_each("array", [np.array(["text"]), np.array(["1"], "M8[Y]"), np.zeros(2, "i4,f4"), np.array([1j])])
def test_arrays_of_no_numbers(tmp_path, array):
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(ValueError, match=r"array 'x' must hold numbers; got dtype"):
        read_all(tmp_path / "a.npz")


@for_each("shape", [(4, 4), (2, 4), (10**9, 10**9), (-3, -4), (3, 4, 0)])
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


@for_each("header", [b"{'descr': [}", b"(" * 200, b"{[]: 1}", b"\xff'", b"'''", b"{'a': 1}"])
def test_a_header_that_is_none(tmp_path, header):
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    refused(archive(tmp_path / "a.npz", {"x.npy": content}), "'x.npy' must be a .npy array")


def test_truncated_npz(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    content = (tmp_path / "a.npz").read_bytes()
    refused(write(tmp_path / "a.npz", content[:-100]), "whole .npz", "first bytes are b'PK")


def test_damaged_member(tmp_path):
    large = np.random.default_rng(1).normal(size=10**4).astype("float32")  # more than zipfile reads for the header
    path = archive(tmp_path / "a.npz", {"x.npy": npy(ARRAYS["a/kernel"]), "y.npy": npy(large)})
    content = bytearray(path.read_bytes())
    content[content.index(large[-10:].tobytes())] ^= 1
    entries = open_checkpoint(write(path, content)).entries
    np.testing.assert_array_equal(entries["x"].read(), ARRAYS["a/kernel"])
    with pytest.raises(ValueError, match=r"a\.npz.*array 'y' is damaged: .*(CRC|checksum)"):
        entries["y"].read()


@for_each("suffix", [".npz", ".safetensors", ".weights.h5", ".keras"])
@for_each("content", [b"", b"hello, I am a text\n", b"<!DOCTYPE html><html>"])
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


@for_each("suffix", [".pth", ".pt", ".bin", ".ckpt", ".pkl"])
def test_pickles_are_refused_with_advice(tmp_path, suffix):
    refused(write(tmp_path / f"a{suffix}", b"x"), "pickle", "safetensors.torch.save_file")


def test_unknown_suffix_and_missing_file(tmp_path):
    refused(write(tmp_path / "a.onnx", b"x"), ".npz, .safetensors, .weights.h5, .weights.json, .keras or a folder")
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


@for_each(
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
    monkeypatch.setattr(files, "MAX_JSON", 1000)
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
