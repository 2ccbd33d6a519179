"""One process trains in a folder at a time: two real processes, and locks that ended owners have left."""

import errno
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from short_runs import KillAt, Killed, data, end_state, fit, make_model

from keras_vit import ViTConfig, files
from keras_vit.data import from_arrays
from keras_vit.files import LOCK, hold
from keras_vit.training import Recipe, Resume, train

# The file alone, without the package, which takes seconds to import.
_OWNER = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("files", {files.__file__!r})
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
with files.hold(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def leave(folder, process, host, silence=0.0):
    """The lock file of an owner that has ended without removing it."""
    path = folder / LOCK
    path.write_text(f"{process}@{host}, since 2026-01-02 03:04:05")
    os.utime(path, (time.time() - silence,) * 2)
    return path


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_second_process_is_told_of_the_first(tmp_path, owner):
    with pytest.raises(BlockingIOError) as raised, hold(tmp_path):
        pass
    assert f"another process ({owner.pid}@{socket.gethostname()}, since 20" in str(raised.value)
    assert f") is training in {tmp_path}: wait until it ends, or use another workdir" in str(raised.value)
    assert os.listdir(tmp_path) == [LOCK]


@pytest.mark.parametrize("end", ["kill", "terminate", "finish"])
def test_the_folder_is_free_at_once_when_the_owner_has_ended(tmp_path, owner, end):
    if end == "finish":
        owner.stdin.close()
    else:
        getattr(owner, end)()
    owner.wait()
    with hold(tmp_path):
        assert (tmp_path / LOCK).read_text().startswith(f"{os.getpid()}@{socket.gethostname()}, since 20")
    assert os.listdir(tmp_path) == []


def test_train_and_fit_are_refused_and_change_nothing(tmp_path, owner):
    images, labels = np.zeros((8, 8, 8, 1), "uint8"), np.arange(8) % 2
    config = ViTConfig(
        name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=2
    )
    recipe = Recipe(
        name="toy",
        source="this test",
        optimizer="sgd",
        learning_rate=0.1,
        batch_size=8,
        epochs=1,
        model=config.replace(channels=1),
    )
    half_written = tmp_path / ".partial-of-the-owner"
    half_written.mkdir()
    for run in (lambda: train(recipe, from_arrays(images, labels), tmp_path, verbose=0), lambda: fit(tmp_path)):
        with pytest.raises(BlockingIOError, match=f"another process .*{owner.pid}@.* is training in {tmp_path}"):
            run()
    assert sorted(os.listdir(tmp_path)) == [half_written.name, LOCK]


def test_a_run_that_was_broken_off_leaves_no_lock(tmp_path):
    with pytest.raises(Killed):
        fit(tmp_path, KillAt(7))
    assert os.listdir(tmp_path) == ["checkpoints"]


def test_a_resume_that_another_run_has_overtaken_is_refused(tmp_path):
    """Its data begin at a step whose checkpoint may be gone; that is no damage."""
    with pytest.raises(Killed):
        fit(tmp_path, KillAt(7))
    early = Resume(tmp_path)
    expected = end_state(*fit(tmp_path))
    with pytest.raises(ValueError, match="must be that of step 6, .* it is that of step 18 now: create the Resume"):
        make_model().fit(data(6), epochs=3, steps_per_epoch=6, callbacks=[early], verbose=0)
    assert end_state(*fit(tmp_path)) == expected


def test_the_same_thread_enters_again_and_another_one_does_not(tmp_path):
    refused = []

    def enter():
        try:
            with hold(tmp_path):
                pass
        except BlockingIOError as error:
            refused.append(str(error))

    with hold(tmp_path), hold(pathlib.Path(os.path.relpath(tmp_path))):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        enter()
    assert len(refused) == 1 and f"process ({os.getpid()}@" in refused[0]


def test_an_owner_on_another_machine_counts_while_it_gives_signs_of_life(tmp_path):
    path = leave(tmp_path, 7, "elsewhere", silence=40)
    with pytest.raises(BlockingIOError) as raised, hold(tmp_path):
        pass
    assert "another process (7@elsewhere, since 2026-01-02 03:04:05) is training in" in str(raised.value)
    assert str(raised.value).endswith("if it ended on another machine, its lock expires after 120 seconds")
    leave(tmp_path, 7, "elsewhere", silence=121)
    with hold(tmp_path):
        assert "elsewhere" not in path.read_text()


def test_the_owner_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BEAT", 0.01)
    with hold(tmp_path):
        os.utime(tmp_path / LOCK, (0, 0))
        until = time.monotonic() + 10
        while os.stat(tmp_path / LOCK).st_mtime < 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert time.time() - os.stat(tmp_path / LOCK).st_mtime < 60


@pytest.mark.parametrize(("process", "silence", "is_free"), [("own", 0, False), ("own", 121, True), ("ended", 0, True)])
def test_without_locks_of_the_file_system_the_owner_is_looked_for(tmp_path, monkeypatch, process, silence, is_free):
    def without(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", without)
    leave(tmp_path, os.getpid() if process == "own" else ended_process(), socket.gethostname(), silence)
    if is_free:
        with hold(tmp_path):
            pass
        assert os.listdir(tmp_path) == []
    else:
        with pytest.raises(BlockingIOError, match="its lock expires"), hold(tmp_path):
            pass


def test_a_lock_file_that_says_nothing_is_free(tmp_path):
    (tmp_path / LOCK).write_bytes(b"\0\xff garbage")
    with hold(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_folder_made_for_nothing_is_removed(tmp_path):
    with pytest.raises(Killed), hold(tmp_path / "new" / "run"):
        raise Killed
    assert not (tmp_path / "new" / "run").exists()
