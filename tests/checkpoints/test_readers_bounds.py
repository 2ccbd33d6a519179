"""No array takes memory before its size is known to be there, in each kind of file."""

import io
import json
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from checkpoint_files import archive, npy, read_all, refused, write
from faults import for_each

from keras_vit.checkpoints import locate, npz
from keras_vit.checkpoints.readers import open_checkpoint


@pytest.fixture
def small_memory(monkeypatch):
    """What a reader may allocate for one array."""

    def empty(shape, dtype):
        assert np.prod(shape, dtype=float) * np.dtype(dtype).itemsize < 2**20, shape
        return np.empty(shape, dtype)

    monkeypatch.setattr(npz, "aligned_zeros", empty)


def with_size(content, name, size, compressed=None):
    """An archive whose directory claims that a member has `size` bytes, and `compressed` of them in the file."""
    place = content.rindex(b"PK\x01\x02", 0, content.rindex(name.encode()))
    changed = bytearray(content)
    if compressed is not None:
        changed[place + 20 : place + 24] = struct.pack("<I", compressed)
    changed[place + 24 : place + 28] = struct.pack("<I", size)
    return bytes(changed)


@pytest.mark.parametrize(
    ("method", "compressed"),
    [(zipfile.ZIP_DEFLATED, None), (zipfile.ZIP_STORED, None), (zipfile.ZIP_DEFLATED, 2**31)],
)
def test_npz_that_claims_more_than_it_holds(tmp_path, small_memory, method, compressed):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**29,)})
    archive(tmp_path / "a.npz", {"x.npy": header.getvalue() + bytes(100)}, method)
    content = (tmp_path / "a.npz").read_bytes()
    path = write(tmp_path / "a.npz", with_size(content, "x.npy", 2**31 + len(header.getvalue()), compressed))
    refused(path, "'x.npy' must not overlap others or exceed the archive; it claims")
    with pytest.raises(ValueError, match="must not overlap others or exceed the archive"):
        locate.check_archive(path)


def test_members_that_share_their_bytes(tmp_path):
    """A thousand arrays of the same megabyte, which a small file could make cost hours."""
    content = npy(np.zeros(2**18, "f4"))
    first = io.BytesIO()
    with zipfile.ZipFile(first, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("0.npy", content)
        for number in range(1, 1000):
            member = zipfile.ZipInfo(f"{number}.npy")
            twin = file.filelist[0]
            for field in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(member, field, getattr(twin, field))
            file.filelist.append(member)
        file._didModify = True
    path = write(tmp_path / "a.npz", first.getvalue())
    with pytest.raises(ValueError, match="must not overlap others or exceed the archive"):
        open_checkpoint(path)


def test_hdf5_with_a_chunk_larger_than_its_array(tmp_path):
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        group = file.create_group("layers/dense/vars")
        options = {"maxshape": (None,), "chunks": (2**27,), "compression": "gzip"}
        dataset = group.create_dataset("0", (4,), "f4", **options)
        dataset.id.write_direct_chunk((0,), zlib.compress(bytes(2**20)))
    refused(tmp_path / "a.weights.h5", "its chunks must not be much larger than their arrays", "(134217728,)")
    with h5py.File(tmp_path / "b.weights.h5", "w") as file:  # as other programs write
        options = {"maxshape": (None,), "chunks": (1024,), "compression": "gzip"}
        file.create_group("layers/dense/vars").create_dataset("0", data=np.ones(4, "f4"), **options)
    np.testing.assert_array_equal(read_all(tmp_path / "b.weights.h5")["dense/0"], np.ones(4, "f4"))


HEADERS = {
    "a length beyond the file": (2**40, {}),
    "a length of more than any file": (2**64 - 1, {}),
    "arrays that overlap": (None, {"a": [0, 16], "b": [8, 24]}),
    "an array beyond the end": (None, {"a": [0, 16], "b": [16, 2**40]}),
    "a hole": (None, {"a": [0, 8], "b": [16, 24]}),
    "an array that ends before it begins": (None, {"a": [16, 0]}),
    "a negative place": (None, {"a": [-16, 0]}),
}


@for_each("case", HEADERS)
def test_headers_of_safetensors(case, tmp_path):
    length, places = HEADERS[case]
    header = {name: {"dtype": "F32", "shape": [4], "data_offsets": offsets} for name, offsets in places.items()}
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text) if length is None else length) + text + bytes(24)
    refused(write(tmp_path / "a.safetensors", content), "must be a whole .safetensors file")


def test_safetensors_whose_shape_claims_more_than_its_bytes(tmp_path):
    text = json.dumps({"a": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 16]}}).encode()
    refused(write(tmp_path / "a.safetensors", struct.pack("<Q", len(text)) + text + bytes(16)), "must be a whole")
