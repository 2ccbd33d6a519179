"""Tables, TOML and JSON, atomic writes, locks of folders, Keras's cache; this module uses only the standard library.

After an interruption, a written file is complete or absent.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile
import threading
import time
import tomllib
import uuid
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_JSON = 16 * 2**20  # bytes; the Python objects take up to 25 times as much memory
_JSON_NAMES = {dict: "object", list: "array"}
LOCK = "training.lock"
_BEAT = 15  # seconds between two updates of a lock file by its owner
_SILENCE = 120  # seconds without an update after which an owner on another machine counts as ended
_PARTIAL = ".partial-"
_PACKAGE = pathlib.Path(__file__).parent
_STALE_SECONDS = 24 * 3600  # a folder without a write for this long does not belong to a write in progress

_held: set[tuple[str, int, int]] = set()  # path, process and thread of each held lock


def read_table(path, parsed=()):
    """Return the lines of a `.tsv` file of the package as dicts from column to cell; empty cells are omitted.

    Lines that begin with # are comments. The first other line names the columns.

    Args:
        path: path of the file, relative to the package.
        parsed: columns whose cells are JSON; the others are strings.
    """
    lines = (_PACKAGE / path).read_text(encoding="utf-8").splitlines()
    columns, *rows = (line.split("\t") for line in lines if not line.startswith("#"))
    cells = ([(name, cell) for name, cell in zip(columns, row, strict=True) if cell] for row in rows)
    return [{name: json.loads(cell) if name in parsed else cell for name, cell in row} for row in cells]


def aligned(rows, left=()):
    """Return the text of a table; the columns in `left` are left-aligned, the others right-aligned."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if n in left else '>'}{width}}}" for n, width in enumerate(widths))
    return "\n".join(form.format(*row).rstrip() for row in rows)


def read_toml(path):
    """Return the contents of a `.toml` file of the package; `path` is relative to the package."""
    return tomllib.loads((_PACKAGE / path).read_text(encoding="utf-8"))


def keras_home():
    """Return the folder of Keras's cache; Keras does not publish the rule, so it is repeated here."""
    if "KERAS_HOME" in os.environ:
        return pathlib.Path(os.environ["KERAS_HOME"]).expanduser()
    home = os.path.expanduser("~")
    return pathlib.Path(home if os.access(home, os.W_OK) else "/tmp") / ".keras"


class Refused(ValueError):
    """The contents of a file are not accepted; the message says what is wrong."""


def check_regular(path):
    """Return a path unless it is a pipe, a socket or a device, which may never end; it may be a folder or absent."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise ValueError(f"{os.fspath(path)!r} must be a regular file; it is a pipe, a socket or a device")
    return path


def parse_json(name, size, read, kind=dict, most=None, object_hook=None):
    """Return the dict or list in a JSON file or in a JSON member of an archive.

    Args:
        name: name of the file in error messages.
        size: size of the file in bytes.
        read: callable that returns the content; it is not called if the file is larger than `most`.
        kind: the expected type, `dict` or `list`.
        most: maximum size in bytes; None is `MAX_JSON`.
        object_hook: as in `json.loads`.

    Raises:
        Refused: if the file is too large, is not JSON, or has another type.
    """
    most = MAX_JSON if most is None else most
    if size > most:
        raise Refused(f"{name} must not exceed {most} bytes; got {size}")
    try:
        values = json.loads(read(), object_hook=object_hook)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} must be JSON: {error}") from error
    if not isinstance(values, kind):
        raise Refused(f"{name} must hold a JSON {_JSON_NAMES[kind]}; got {type(values).__name__}")
    return values


def replace_file(path, write):
    """Write a file to a temporary folder, flush it to disk and rename it to its final path.

    Args:
        path: path of the file; its folder must exist.
        write: function that takes a path with the same file name and writes the file there.

    Raises:
        OSError: if the system cannot write or rename. After any error, a file that existed before is unchanged.
    """
    replace_files({path: write})


def replace_files(writers, check=None):
    """Write several files as `replace_file` does; rename them when all are written.

    Args:
        writers: dict from path to the function that writes the file.
        check: function of a dict from these paths to the temporary ones, called before the files are renamed.
    """
    with contextlib.ExitStack() as folders:
        partials = {}
        for parent in {pathlib.Path(path).parent for path in writers}:
            remove_abandoned(parent, _PARTIAL)
        for path, write in writers.items():
            path = pathlib.Path(path)
            folder = tempfile.TemporaryDirectory(prefix=_PARTIAL, suffix=f"-{_me()}", dir=path.parent)
            partials[path] = partial = pathlib.Path(folders.enter_context(folder)) / path.name
            partial.touch()
            mode = partial.stat().st_mode
            with _system_errors(path):
                write(partial)
            partial.chmod(mode)  # the mode of other new files; some libraries create files that only the owner can read
            _bring_to_disk(partial)
        if check is not None:
            check(partials)
        for path, partial in partials.items():
            os.replace(partial, path)
            _bring_to_disk(path.parent)


@contextlib.contextmanager
def _system_errors(path):
    """Convert the errors of libraries in Rust and C that state one of the system, such as a full disk, to OSError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not re.search("os error|errno|space left", str(error)):
            raise
        raise OSError(f"{str(path)!r} cannot be written: {error}") from error


def remove_partial(folder):
    """Delete the partial files that interrupted processes left in a folder."""
    for partial in pathlib.Path(folder).glob(f"{_PARTIAL}*"):
        shutil.rmtree(partial)


def partial_name(prefix):
    """Return a new name for a temporary folder; `remove_abandoned` reads the process id and host in it."""
    return f"{prefix}{uuid.uuid4().hex}-{_me()}"


def remove_abandoned(folder, prefix):
    """Delete the folders with a name from `partial_name(prefix)` whose process has ended.

    A process counts as ended if it ran on this machine and no longer exists, or if it has written nothing for a day.
    """
    owned = re.compile(re.escape(prefix) + r"\w+-(\d+@.+)")
    for path in pathlib.Path(folder).glob(f"{prefix}*"):
        owner = owned.fullmatch(path.name)
        if owner and (_has_ended(owner[1]) or _age(path) > _STALE_SECONDS):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def hold(folder):
    """Hold the lock of a folder; the folder is created if absent. The same thread may enter again.

    The operating system's lock (flock) is released when the process ends for any reason. The lock file also names its
    owner, and the owner updates the modification time of the file regularly. Where flock does not
    work (between machines, and on file systems without locks), the name and the time show whether the lock is held.

    Raises:
        BlockingIOError: if another process, or another thread, holds the lock.
        OSError: if the folder or the file cannot be written.
    """
    # Not the library filelock (4.3): its FileLock does not work without flock, and another process may take its
    # SoftFileLease from an owner that is only stopped, or after a wait of the whole lease instead of at once.
    folder = pathlib.Path(folder)
    path = folder / LOCK
    key = (os.path.realpath(path), os.getpid(), threading.get_ident())
    if key in _held:
        yield
        return
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8", errors="replace") as file:
        text = _take(path, file)
        ended = threading.Event()
        beat = threading.Thread(target=_beat, args=(path, ended), daemon=True)
        beat.start()
        _held.add(key)
        try:
            yield
        finally:
            _held.remove(key)
            ended.set()
            beat.join()
            with contextlib.suppress(OSError):  # the folder may be gone, and Windows cannot remove open files
                if path.read_text(encoding="utf-8") == text:
                    file.truncate(0)
                    path.unlink()
                if is_new:
                    folder.rmdir()


def _take(path, file):
    """Lock the open lock file and write the name of this process into it; return the text written."""
    is_granted = _lock(file)
    file.seek(0)
    owner, status = re.fullmatch(r"(\d+@\S+), since .*", file.read()), os.fstat(file.fileno())
    may_run = owner is not None and time.time() - status.st_mtime <= _SILENCE and not _has_ended(owner[1])
    is_free = is_granted is not False and (not may_run or (is_granted and _is_here(owner[1])))
    is_removed = not path.exists() or not os.path.samestat(path.stat(), status)  # by an owner that has just ended
    if is_removed or not is_free:
        raise BlockingIOError(
            f"another process ({owner[0] if owner else 'unknown'}) is training in {path.parent}: wait until it ends, "
            f"or use another workdir; if it ended on another machine, its lock expires after {_SILENCE} seconds"
        )
    text = f"{_me()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    file.truncate(0)
    file.write(text)
    file.flush()
    return text


def _lock(file):
    """Return whether the system granted the lock; None if it cannot lock this file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # a file system without locks, Windows
        return None
    return True


def _beat(path, ended):
    while not ended.wait(_BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def _me():
    return f"{os.getpid()}@{socket.gethostname()}"


def _is_here(owner):
    return owner.endswith(f"@{socket.gethostname()}")


def _has_ended(owner):
    """Return whether a process, given as `"id@host"`, ran on this machine and no longer exists."""
    if not _is_here(owner) or os.name != "posix":
        return False
    try:
        os.kill(int(owner.partition("@")[0]), 0)  # signal 0 only checks that the process exists
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
    if os.name != "posix":  # Windows cannot flush folders or files that are open only for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
