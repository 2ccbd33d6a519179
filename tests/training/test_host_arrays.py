"""Checksums of JAX arrays, and what Orbax reads and writes; several processes are in test_kill_hosts.py."""

import re
import sys

import numpy as np
import pytest
from faults import for_each

from keras_vit.training import host_arrays
from keras_vit.versions import install_command

jax = pytest.importorskip("jax")


def test_checksum_is_that_of_the_formula():
    values = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    factors = np.arange(15, dtype="uint64") * 2654435761 % 2**32 | 1
    expected = int((values.view("uint32").reshape(-1).astype("uint64") * factors % 2**32).sum() % 2**32)
    assert host_arrays.checksum(jax.numpy.asarray(values)) == expected


@for_each("dtype", ["float32", "bfloat16", "uint32", "int8", "bool"])
def test_checksum_changes_with_every_value_and_place(dtype):
    values = np.zeros((2, 3))
    found = {host_arrays.checksum(jax.numpy.asarray(values, dtype))}
    for place in np.ndindex(2, 3):
        changed = values.copy()
        changed[place] = 1
        found.add(host_arrays.checksum(jax.numpy.asarray(changed, dtype)))
    assert len(found) == 7


def test_orbax_keeps_the_bits(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    arrays = {
        "model.00000.kernel": jax.numpy.arange(6.0).reshape(2, 3) / 3,
        "half": jax.numpy.asarray([0.1, 1.0], "bfloat16"),
        "callback.best": np.float64(0.1) + np.zeros(()),  # JAX has no such floats
    }
    host_arrays.save(tmp_path / "arrays", arrays, {"some": "text"})
    assert host_arrays.read_metadata(tmp_path / "arrays") == {"some": "text"}
    forms = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    found = host_arrays.restore(tmp_path / "arrays", forms, {"half": arrays["half"]})
    assert [name for name in found if host_arrays.is_shared(found[name])] == ["half"]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.asarray(found[name]).tobytes() == np.asarray(array).tobytes()


def test_without_orbax(monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=f"need Orbax: {re.escape(install_command('hosts'))}$"):
        host_arrays.checkpointer()
