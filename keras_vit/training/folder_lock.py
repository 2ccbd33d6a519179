"""The lock of a folder in which one process trains at a time. Standard library only."""

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
_BEAT = 15  # seconds from one sign of life of the owner to the next
_SILENCE = 120  # seconds without one, after which an owner that cannot be asked counts as ended
_held: dict[str, tuple[int, int]] = {}  # path -> (process, thread) that holds it


@contextlib.contextmanager
def hold(folder):
    """Holds the lock of a folder, which is made if absent. The thread that holds it may enter again.

    The lock is the system's (flock) and ends with the process, however that ends. The file names the owner: process,
    host, beginning; its time is the owner's last sign of life. That decides where the system's lock cannot: between
    machines, and on file systems without such locks.

    Raises:
        BlockingIOError: if another process, or another thread, holds it.
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
            with contextlib.suppress(OSError):  # something was written there
                folder.rmdir()


def _acquire(path):
    """Returns the descriptor of the lock file, once it is this process's."""
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
        os.close(descriptor)  # the owner before has just removed it


def _release(path, descriptor):
    with contextlib.suppress(OSError):  # the folder may be gone, and Windows removes no open file
        os.ftruncate(descriptor, 0)
        if _is_there(path, descriptor):
            path.unlink()
    os.close(descriptor)


def _lock(descriptor):
    """Whether the system gave the lock; None where it has none for this file."""
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
    """Whether the owner that the file names may still train, though the system does not say so."""
    if owner is None or owner["silence"] > _SILENCE:
        return False
    if owner["host"] != socket.gethostname():
        return True
    return not is_locked and _runs(owner["process"])


def _runs(process):
    if os.name != "posix":
        return True  # Windows has no way to ask that ends no process
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _owner(descriptor):
    """What the lock file says of its owner, with the seconds since its last sign of life; None if it says nothing."""
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
    sentence = f"another process{known} trains in {path.parent}: wait until it has ended, or take another workdir"
    if is_certain:
        return sentence
    return (
        f"{sentence}; its last sign of life was {max(owner['silence'], 0):.0f} seconds ago: if it has ended, delete "
        f"{path}, or wait until that is {_SILENCE} seconds"
    )


def _is_there(path, descriptor):
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _beat(path, ended):
    while not ended.wait(_BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)
