"""replace_file and replace_files: whole or not there."""

import pytest

from keras_vit.files import replace_file, replace_files


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


def test_several_files_are_renamed_when_all_are_written(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")

    def fail(partial):
        raise ValueError("not to be written")

    with pytest.raises(ValueError, match="not to be written"):
        replace_files({first: lambda partial: partial.write_text("new"), second: fail})
    assert first.read_text() == "old" and list(tmp_path.iterdir()) == [first]
    replace_files({path: lambda partial: partial.write_text("new") for path in (first, second)})
    assert first.read_text() == second.read_text() == "new" and len(list(tmp_path.iterdir())) == 2
