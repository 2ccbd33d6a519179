"""Fetches published checkpoints into Keras's cache; only a file that was checked gets its final name."""

import contextlib
import errno
import glob
import http.client
import os
import pathlib
import time
import urllib.error
import urllib.parse
import uuid
import warnings
import zipfile

from keras_vit.checkpoints import damage, npz

URL_VARIABLE = "KERAS_VIT_WEIGHTS_URL"

_SCHEMES = ("https", "http", "file")
_STALE_SECONDS = 24 * 3600  # a transfer still alive wrote to its file more recently than this


def fetch(release, *, validate=None, cache_dir=None):
    """Returns the path of a published file in the cache, after downloading it if it is not there yet.

    The file is downloaded by `keras.utils.get_file`, with its progress bar, under a temporary name in
    `models/keras_vit/<directory>` of the cache, checked (see `check_archive`) and only then renamed. Whatever
    goes wrong, nothing of it stays. A cached file that fails the check is downloaded again, with a warning.

    Args:
        release: a `keras_vit.checkpoints.releases.Release` that is a file, none of the hub.
        validate: None or a function of a path that raises `ValueError` if the file's content is not what it
            should be; it is called after the check.
        cache_dir: folder to use in place of Keras's (`KERAS_HOME`, by default `~/.keras`).

    Returns:
        A `pathlib.Path`.

    Raises:
        FileNotFoundError: if there is no such file at the base address.
        ConnectionError: if the server cannot be reached, refuses, or breaks off before the last byte.
        OSError: if the cache cannot be written.
        ValueError: if what came is no valid checkpoint, or the base address is none.
    """
    url = release_url(release)
    path = _cache_folder(release, cache_dir) / f"{release.file}.npz"
    if path.exists():
        try:
            _check(path, validate)
            return path
        except ValueError as error:
            warnings.warn(f"{path} is damaged and is downloaded again: {error}", stacklevel=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path)
    partial = path.with_name(f".{release.file}.{uuid.uuid4().hex}.partial.npz")
    try:
        _download(url, partial)
        try:
            _check(partial, validate)
        except ValueError as error:
            expected = f"{release.path} of about {release.bytes / 2**20:.1f} MiB"
            raise ValueError(
                f"expected {expected} from {url}; got {partial.stat().st_size} bytes in which {error}"
            ) from error
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def release_url(release):
    """Returns the quoted address of a release; its path below `KERAS_VIT_WEIGHTS_URL` where that is set.

    Raises:
        ValueError: if the variable's value is no `https`, `http` or `file` address.
    """
    base = os.environ.get(URL_VARIABLE)
    if not base:
        return urllib.parse.quote(release.address, safe="/:")
    if urllib.parse.urlsplit(base).scheme not in _SCHEMES:
        raise ValueError(f"{URL_VARIABLE} must begin with one of {', '.join(_SCHEMES)} and ://; got {base!r}")
    return f"{base.rstrip('/')}/{urllib.parse.quote(release.path)}"


def keras_home():
    """The folder of Keras's cache, by its own rule, which it applies when it is imported and does not publish."""
    if "KERAS_HOME" in os.environ:
        return pathlib.Path(os.environ["KERAS_HOME"])
    home = os.path.expanduser("~")
    return pathlib.Path(home if os.access(home, os.W_OK) else "/tmp") / ".keras"


def check_archive(path):
    """Raises `ValueError` unless the file is a complete `.npz` of plain arrays.

    Every member must be a `.npy` without Python objects, with the length that its header states and the
    checksum that the archive states. Members are read in chunks, so that memory stays small.
    """
    with damage.explained("a whole .npz was expected", path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if not members:
            raise ValueError("the archive is empty, where arrays were expected")
        for member in members:
            npz.check_member(archive, member)
            with archive.open(member) as file:
                while file.read(npz.CHUNK):  # to its end, where zipfile compares the checksum
                    pass


def _check(path, validate):
    check_archive(path)
    if validate is not None:
        validate(path)


def _cache_folder(release, cache_dir):
    home = keras_home() if cache_dir is None else pathlib.Path(cache_dir)
    return home.expanduser() / "models" / "keras_vit" / release.directory


def _remove_stale(path):
    """Removes what killed processes left of this file; a younger one may be another process's transfer."""
    for partial in path.parent.glob(f".{glob.escape(path.stem)}.*.partial.npz"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                partial.unlink()


def _download(url, partial):
    import keras

    folder = partial.parent
    if not os.access(folder, os.W_OK):  # get_file would go to /tmp without a word
        raise PermissionError(errno.EACCES, "cache must be writable; KERAS_HOME sets another", str(folder))
    try:
        keras.utils.get_file(fname=partial.name, origin=url, cache_dir=str(folder), cache_subdir="")
    except Exception as error:
        # get_file raises a bare Exception in place of urllib's errors, which say more
        cause = error.__context__ if type(error) is Exception and error.__context__ else error
        if not isinstance(cause, (OSError, http.client.HTTPException)):
            raise
        raise _transfer_error(url, partial, cause) from error


def _transfer_error(url, partial, cause):
    remedy = f"the environment variable {URL_VARIABLE} names another base address"
    if isinstance(cause, urllib.error.HTTPError):
        cause.close()
        kind = FileNotFoundError if cause.code == 404 else ConnectionError
        return kind(f"expected a file at {url}; the server answered {cause.code} {cause.reason}; {remedy}")
    reason = cause.reason if isinstance(cause, urllib.error.URLError) else cause
    if isinstance(reason, FileNotFoundError):  # of a file:// address
        return FileNotFoundError(f"expected a file at {url}; there is none; {remedy}")
    if isinstance(cause, (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException)):
        return ConnectionError(f"expected the whole file at {url}; the transfer failed: {reason}; {remedy}")
    return OSError(cause.errno, f"downloading {url} failed: {cause.strerror}", str(partial.parent))
