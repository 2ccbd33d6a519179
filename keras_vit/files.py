"""Files that are whole or are not there, whenever the process is killed."""

import contextlib
import os
import pathlib
import shutil
import tempfile

_PARTIAL = ".partial-"


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
        for path, write in writers.items():
            path = pathlib.Path(path)
            folder = folders.enter_context(tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=path.parent))
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


def _bring_to_disk(path):
    if os.name != "posix":  # Windows flushes only what is open for writing, and no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
