"""replace_file: whole or not there."""

import pytest

from keras_vit.files import replace_file


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "w.weights.h5"
    path.write_text("old")
    replace_file(path, lambda partial: partial.write_text("".join(partial.suffixes[-2:])))
    assert path.read_text() == ".weights.h5" and list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def fail(partial):
        partial.write_text("half")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        replace_file(path, fail)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
