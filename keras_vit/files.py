"""Files that are whole or are not there, whenever the process is killed."""

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
_STALE_SECONDS = 24 * 3600  # what is still being written was touched more recently than this


def replace_file(path, write):
    """Writes a file in a folder of its own beside its place, brings it to the disk and renames it.

    Args:
        path: of the file; its folder must exist.
        write: function of the path to write to, which has the same name.

    Raises:
        OSError: what the system refuses; the file that was there before is still whole, as after any error of `write`.
    """
    replace_files({path: write})


def replace_files(writers):
    """Writes several files as `replace_file` does; none is renamed before all are written.

    Args:
        writers: dict from path to the function that writes there.
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
            partial.chmod(mode)  # that of other new files, where a library makes one for its owner alone
            _bring_to_disk(partial)
        for path, partial in partials.items():
            os.replace(partial, path)
            _bring_to_disk(path.parent)


def remove_partial(folder):
    """Deletes what killed processes have left half written in a folder."""
    for partial in pathlib.Path(folder).glob(f"{_PARTIAL}*"):
        shutil.rmtree(partial)


def partial_name(prefix):
    """A new name for a folder that is to be renamed; it tells `remove_abandoned` whose it is."""
    return f"{prefix}{uuid.uuid4().hex}{_owner()}"


def remove_abandoned(folder, prefix):
    """Deletes what processes that are no more have left of `partial_name(prefix)` in a folder.

    Such are processes of this machine that have ended, and any that has written nothing for a day.
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
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, alive
        pass
    return False


def _age(folder):
    """Seconds since anything in a folder was written."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return 0.0


def _bring_to_disk(path):
    if os.name != "posix":  # Windows flushes only what is open for writing, and no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
