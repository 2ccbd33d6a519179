"""Arrays of an .npz file are read in threads: Python 3.11 must not parse headers, and 3.12 not open members, there."""

import zipfile

import numpy as np
import pytest

from keras_vit.checkpoints import npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_headers_are_parsed_and_members_are_opened_once_when_the_file_is_opened(tmp_path, monkeypatch, save):
    arrays = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b": np.asfortranarray(np.ones((4, 5), "float32"))}
    save(tmp_path / "w.npz", **arrays)
    checkpoint = npz.read_npz(tmp_path / "w.npz")

    def refuse(*arguments):
        raise AssertionError("a header is parsed, or a member is opened, again")

    monkeypatch.setattr(npz, "_HEADER_READERS", dict.fromkeys(npz._HEADER_READERS, refuse))
    monkeypatch.setattr(zipfile.ZipFile, "open", refuse)
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.entries[name].read(), array)
