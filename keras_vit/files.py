"""Atomic writes: after an interruption, a file is either complete or absent."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import tempfile
import time
import uuid

_PARTIAL = ".partial-"
_STALE_SECONDS = 24 * 3600  # a write in progress has touched its folder more recently than this


def replace_file(path, write):
    """Write a file to a temporary folder, flush it to disk and rename it to its final path.

    Args:
        path: path of the file; its folder must exist.
        write: function that writes the file to the path it is given, which has the same file name.

    Raises:
        OSError: if the system cannot write or rename. After any error, a file that existed before is unchanged.
    """
    replace_files({path: write})


def replace_files(writers):
    """Write several files as `replace_file` does; rename none before all are written.

    Args:
        writers: dict from path to the function that writes the file.
    """
    with contextlib.ExitStack() as folders:
        partials = {}
        for parent in {pathlib.Path(path).parent for path in writers}:
            remove_abandoned(parent, _PARTIAL)
        for path, write in writers.items():
            path = pathlib.Path(path)
            folder = folders.enter_context(
                tempfile.TemporaryDirectory(prefix=_PARTIAL, suffix=_owner(), dir=path.parent)
            )
            partials[path] = partial = pathlib.Path(folder) / path.name
            partial.touch()
            mode = partial.stat().st_mode
            write(partial)
            partial.chmod(mode)  # the mode of other new files; some libraries create files that only the owner can read
            _bring_to_disk(partial)
        for path, partial in partials.items():
            os.replace(partial, path)
            _bring_to_disk(path.parent)


def remove_partial(folder):
    """Delete the partial files that interrupted processes left in a folder."""
    for partial in pathlib.Path(folder).glob(f"{_PARTIAL}*"):
        shutil.rmtree(partial)


def partial_name(prefix):
    """Return a new name for a temporary folder; it contains the process id and host for `remove_abandoned`."""
    return f"{prefix}{uuid.uuid4().hex}{_owner()}"


def remove_abandoned(folder, prefix):
    """Delete the folders named by `partial_name(prefix)` that ended processes left behind.

    A process counts as ended if it ran on this machine and no longer exists, or if it has written nothing for a day.
    """
    owned = re.compile(re.escape(prefix) + r"\w+-(\d+)@(.+)")
    for path in pathlib.Path(folder).glob(f"{prefix}*"):
        owner = owned.fullmatch(path.name)
        if owner and (_has_ended(int(owner[1]), owner[2]) or _age(path) > _STALE_SECONDS):
            shutil.rmtree(path, ignore_errors=True)


def _owner():
    return f"-{os.getpid()}@{socket.gethostname()}"


def _has_ended(process, host):
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return True
    except PermissionError:  # the process belongs to another user
        pass
    return False


def _age(folder):
    """Return the seconds since the last write in a folder."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return 0.0


def _bring_to_disk(path):
    if os.name != "posix":  # Windows cannot flush folders, nor files that are open for reading only
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
