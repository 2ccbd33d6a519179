"""A lock that lets only one process at a time train in a folder. Uses the standard library only."""

import contextlib
import json
import os
import pathlib
import socket
import threading
import time
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NAME = "training.lock"
_BEAT = 15  # seconds between two updates of the lock file by its owner
_SILENCE = 120  # seconds without an update after which an owner on another machine counts as ended
_held: dict[str, tuple[int, int]] = {}  # path -> (process, thread) that holds the lock


@contextlib.contextmanager
def hold(folder):
    """Hold the lock of a folder; the folder is created if absent. The same thread may enter again.

    The operating system's lock (flock) is released when the process ends for any reason. The lock file also names the
    owner's process, host and start time, and the owner updates its modification time regularly. These decide where
    flock does not work: between machines, and on file systems without locks.

    Raises:
        BlockingIOError: if another process, or another thread, holds the lock.
        OSError: if the folder or the file cannot be written.
    """
    folder = pathlib.Path(folder)
    path, me = folder / NAME, (os.getpid(), threading.get_ident())
    key = os.path.realpath(path)
    if _held.get(key) == me:
        yield
        return
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, ended = _acquire(path), threading.Event()
    beat = threading.Thread(target=_beat, args=(path, ended), daemon=True)
    beat.start()
    _held[key] = me
    try:
        yield
    finally:
        del _held[key]
        ended.set()
        beat.join()
        _release(path, descriptor)
        if is_new:
            with contextlib.suppress(OSError):  # the folder is no longer empty
                folder.rmdir()


def _acquire(path):
    """Return the descriptor of the lock file after locking it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_free = _lock(descriptor)
            owner = _owner(descriptor)
            if is_free is False or _is_alive(owner, is_free):
                raise BlockingIOError(_refusal(path, owner, is_certain=is_free is False))
            if _is_there(path, descriptor):
                _write_owner(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous owner has just removed the file


def _release(path, descriptor):
    with contextlib.suppress(OSError):  # the folder may be gone, and Windows cannot remove open files
        os.ftruncate(descriptor, 0)
        if _is_there(path, descriptor):
            path.unlink()
    os.close(descriptor)


def _lock(descriptor):
    """Whether the system granted the lock; None if it cannot lock this file."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_alive(owner, is_locked):
    """Whether the owner named in the file may still be training, although the system's lock does not show it."""
    if owner is None or owner["silence"] > _SILENCE:
        return False
    if owner["host"] != socket.gethostname():
        return True
    return not is_locked and _runs(owner["process"])


def _runs(process):
    if os.name != "posix":
        return True  # on Windows, os.kill would end the process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _owner(descriptor):
    """Return the owner named in the lock file and the seconds since its last update; None if it names none."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        values = json.loads(os.read(descriptor, 10_000))
        owner = {"process": int(values["process"]), "host": str(values["host"]), "since": str(values["since"])}
    except (ValueError, KeyError, TypeError):
        return None
    return {**owner, "silence": time.time() - os.fstat(descriptor).st_mtime}


def _write_owner(descriptor):
    owner = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(owner).encode())


def _refusal(path, owner, is_certain):
    known = "" if owner is None else f" (process {owner['process']} on {owner['host']}, since {owner['since']})"
    sentence = f"another process{known} trains in {path.parent}: wait until it ends, or use another workdir"
    if is_certain:
        return sentence
    return (
        f"{sentence}; it last updated its lock {max(owner['silence'], 0):.0f} seconds ago: if it has ended, delete "
        f"{path}, or try again when that is {_SILENCE} seconds"
    )


def _is_there(path, descriptor):
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _beat(path, ended):
    while not ended.wait(_BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)
