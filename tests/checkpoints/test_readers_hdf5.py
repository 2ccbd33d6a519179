"""HDF5 can point outside of itself and claim more than it holds: neither is followed."""

import h5py
import numpy as np
import pytest
from checkpoint_files import read_all, refused, write


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
