import errno
import json
import os
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest
from faults import for_each
from safetensors import SafetensorError
from safetensors.numpy import load_file

import keras_vit.files
from keras_vit.training import CheckpointError, checkpoint_files
from keras_vit.training.checkpoint_files import CheckpointFolder, write_atomically

ARRAYS = {
    "matrix": np.arange(6, dtype="float32").reshape(2, 3) / 7,
    "scalar": np.array(5, "int64"),
    "seed": np.array([1, 2], "uint32"),
    "half": np.array([0.5, 3.0], ml_dtypes.bfloat16),
    "flag": np.array(True),
    "transposed": np.arange(6.0).reshape(2, 3).T,
}
STATE = {"history": {"loss": [0.1, float("nan")]}, "epochs": [0, 1]}


def test_what_is_written_is_read(tmp_path):
    files = CheckpointFolder(tmp_path / "new" / "folder")
    files.write(7, ARRAYS, STATE)
    arrays, state = files.read(7)
    assert json.dumps(state) == json.dumps(STATE)
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in ARRAYS.items()
    }
    # Other programs read the file too.
    np.testing.assert_array_equal(load_file(files.path(7))["matrix"], ARRAYS["matrix"])


@pytest.mark.parametrize(("keep", "kept"), [(0, [9]), (1, [5, 9]), (2, [3, 5, 9])])
def test_earlier_ones_are_kept(tmp_path, keep, kept):
    files = CheckpointFolder(tmp_path, keep)
    assert files.steps() == []
    for step in (1, 3, 5, 9):
        files.write(step, ARRAYS, STATE)
    assert files.steps() == kept
    assert sorted(os.listdir(tmp_path)) == [f"step-{step:09d}.safetensors" for step in kept]


def test_others_may_read_them(tmp_path):
    files = CheckpointFolder(tmp_path)
    files.write(1, ARRAYS, STATE)
    (tmp_path / "other").touch()
    assert files.path(1).stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize(("module", "call"), [(checkpoint_files, "save_file"), (keras_vit.files, "_bring_to_disk")])
def test_a_failed_write_leaves_the_earlier_one(tmp_path, monkeypatch, module, call):
    files = CheckpointFolder(tmp_path, keep=0)
    files.write(1, ARRAYS, STATE)

    def fail(*arguments):
        path = next(argument for argument in arguments if isinstance(argument, pathlib.Path))
        path.with_name(".other").write_bytes(b"half")  # safetensors too writes to another name first
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, call, fail)
    with pytest.raises(CheckpointError) as raised:
        files.write(2, ARRAYS, STATE)
    assert f"{files.path(2)} could not be written: [Errno 28] No space left on device; free space" in str(raised.value)
    assert str(raised.value).endswith("earlier files are kept, and the same command resumes from the last checkpoint")
    assert os.listdir(tmp_path) == ["step-000000001.safetensors"]
    assert files.read(1)[1]["epochs"] == [0, 1]


def test_the_order_on_the_disk(tmp_path, monkeypatch):
    """File, name, folder, and only then the older files go."""
    files, calls = CheckpointFolder(tmp_path, keep=0), []
    files.write(1, ARRAYS, STATE)
    fsync, replace = os.fsync, os.replace

    def noting_fsync(descriptor):
        calls.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), files.steps()))
        fsync(descriptor)

    def noting_replace(source, target):
        calls.append(("rename", os.path.basename(target), files.steps()))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    files.write(2, ARRAYS, STATE)
    assert calls == [
        ("fsync", "step-000000002.safetensors", [1]),
        ("rename", "step-000000002.safetensors", [1]),
        ("fsync", tmp_path.name, [1, 2]),
    ]
    assert files.steps() == [2]


def test_what_a_killed_process_leaves_is_never_a_checkpoint(tmp_path):
    files = CheckpointFolder(tmp_path)
    files.write(1, ARRAYS, STATE)
    (tmp_path / ".partial-a").mkdir()
    (tmp_path / ".partial-a" / "step-000000002.safetensors").write_bytes(b"half")
    (tmp_path / ".partial-a" / ".other").write_bytes(b"half")
    (tmp_path / "step-000000003.safetensors.txt").write_bytes(b"not one of ours")
    assert files.steps() == [1]
    keras_vit.files.remove_partial(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["step-000000001.safetensors", "step-000000003.safetensors.txt"]


@for_each("damage", ["cut", "garbage", "other step"])
def test_damage_is_told(tmp_path, damage):
    files = CheckpointFolder(tmp_path)
    files.write(1, ARRAYS, STATE)
    content = files.path(1).read_bytes()
    if damage == "other step":
        os.rename(files.path(1), files.path(2))
    else:
        files.path(2).write_bytes(content[:-1] if damage == "cut" else b"x" * 100)
    before = 0 if damage == "other step" else 1
    with pytest.raises(CheckpointError, match=f"02.safetensors must be a whole .* delete it, .* from step {before}$"):
        files.read(2)


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    """Header, state, names, shapes and arrays: one bit of every byte of the file."""
    files = CheckpointFolder(tmp_path)
    files.write(1, ARRAYS, STATE)
    files.write(2, ARRAYS, STATE)
    content = files.path(2).read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        files.path(2).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="step-000000002.safetensors .* resumes from step 1$"):
            files.read(2)


def test_the_array_of_a_flipped_bit_is_named(tmp_path):
    files = CheckpointFolder(tmp_path)
    files.write(1, ARRAYS, STATE)
    content = bytearray(files.path(1).read_bytes())
    content[content.index(ARRAYS["matrix"].tobytes()) + 5] ^= 1
    files.path(1).write_bytes(content)
    with pytest.raises(CheckpointError, match="got an array matrix with a wrong checksum: delete it"):
        files.read(1)


def test_another_format_is_told(tmp_path, monkeypatch):
    files = CheckpointFolder(tmp_path)
    monkeypatch.setattr(checkpoint_files, "_FORMAT", 9)
    files.write(1, ARRAYS, STATE)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="in format 3; got a header of another format"):
        files.read(1)


def test_a_failed_write_of_any_file_leaves_the_earlier_and_no_other(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("whole")

    def half_a_file(partial):
        partial.write_text("half")
        raise OSError("disk full")

    with pytest.raises(CheckpointError, match="model.keras could not be written: disk full; free .* the same"):
        write_atomically(path, half_a_file)
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]
    write_atomically(path, lambda partial: partial.write_text("new"))
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "Read-only file system"), SafetensorError("No space left")])
def test_what_the_system_says_is_passed_on(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(checkpoint_files, "save_file", fail)
    with pytest.raises(CheckpointError) as raised:
        CheckpointFolder(tmp_path).write(1, ARRAYS, STATE)
    assert re.search(f"could not be written: .*{re.escape(str(error))}; free space, or make", str(raised.value))


def test_several_processes_write_a_folder(tmp_path):
    """Here the only process; tests/training/test_kill_hosts.py has several."""
    jax = pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    files, array = CheckpointFolder(tmp_path, keep=0), jax.numpy.arange(2000.0)
    for step in (1, 2):
        files.write(step, {"model.x": array, "callback.y": np.float64(0.1) + np.zeros(2)}, STATE)
    assert files.steps() == [2] and [path.name for path in tmp_path.iterdir()] == ["step-000000002"]
    for like in ({}, {"model.x": array}):
        found, state = files.read(2, like)
        assert state["epochs"] == STATE["epochs"] and hasattr(found["model.x"], "sharding") is bool(like)
        assert (np.asarray(found["model.x"]) == array).all() and (found["callback.y"] == 0.1).all()
    header = tmp_path / "step-000000002" / "_CHECKPOINT_METADATA"
    text = header.read_text()
    for changed in (text.replace("2000", "2001"), "{}", text.replace("callback.y", "callback.z")):
        assert changed != text
        header.write_text(changed)
        with pytest.raises(CheckpointError, match="must be a whole checkpoint of step 2 in format 3"):
            files.read(2)
