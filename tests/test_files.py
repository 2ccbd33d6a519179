"""replace_file and replace_files: whole or not there; what killed processes leave."""

import os
import socket
import subprocess
import sys
import time

import pytest

from keras_vit.files import partial_name, remove_abandoned, replace_file, replace_files


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


HALF = """
import os, pathlib, sys
from keras_vit import files
def die(partial):
    partial.write_text("half")
    os.kill(os.getpid(), 9)
files.replace_file(sys.argv[1], die)
"""


@pytest.mark.slow
def test_what_a_killed_process_left_is_deleted_with_the_next_file(tmp_path):
    path = tmp_path / "w.npz"
    assert subprocess.run([sys.executable, "-c", HALF, path]).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".partial-")
    replace_file(tmp_path / "other.npz", lambda partial: partial.write_text("whole"))
    assert [file.name for file in tmp_path.iterdir()] == ["other.npz"]


def test_what_may_still_be_written_stays(tmp_path):
    host, ended = socket.gethostname(), subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        f".partial-a1-{ended.pid}@{host}": False,
        f".partial-b1-{ended.pid}@elsewhere": True,  # what runs there is not known
        f".partial-c1-{os.getpid()}@{host}": True,
        f".partial-d1-1@{host}": True,  # alive, and another user's or ours
        partial_name(".partial-"): True,
        ".partial-e1": True,  # of another program
        ".other-a1-{ended.pid}@{host}": True,
    }
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    remove_abandoned(tmp_path, ".partial-")
    assert {path.name for path in tmp_path.iterdir()} == {name for name, stays in names.items() if stays}
    elsewhere = tmp_path / f".partial-b1-{ended.pid}@elsewhere"
    before = time.time() - 2 * 86400
    os.utime(elsewhere, (before, before))
    remove_abandoned(tmp_path, ".partial-")
    assert elsewhere.exists()  # its file is young
    os.utime(elsewhere / "file", (before, before))
    remove_abandoned(tmp_path, ".partial-")
    assert not elsewhere.exists()
