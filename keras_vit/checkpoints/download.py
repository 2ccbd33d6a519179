"""Download of published checkpoints to Keras's cache; a file gets its final name only after it is checked."""

import contextlib
import errno
import glob
import hashlib
import http.client
import os
import pathlib
import re
import time
import typing
import urllib.error
import urllib.parse
import uuid
import warnings
import zipfile

from keras_vit.checkpoints import damage, npz
from keras_vit.checkpoints.transfer import TooLarge, redacted, transfer
from keras_vit.logs import LOGGER

URL_VARIABLE = "KERAS_VIT_WEIGHTS_URL"

_SCHEMES = ("https", "http", "file")
_STALE_SECONDS = 24 * 3600  # a download in progress has written to its file more recently than this


def fetch(release, *, validate=None, cache_dir=None):
    """Return the path of a published file in the cache; download it first if needed.

    The file is downloaded under a temporary name to `models/keras_vit/<directory>` of the cache, within the limits of
    `most_bytes` and of `transfer`, checked (see `check_archive`) and renamed. Each value of `KERAS_VIT_WEIGHTS_URL` has
    its own folder in `models/keras_vit`. A failed download leaves no file. A cached file that fails the check is
    downloaded again, with a warning.

    Args:
        release: a `keras_vit.checkpoints.releases.Release` that is a file, not a repository of the hub.
        validate: None or a function of a path that raises `ValueError` if the content of the file is invalid; it is
            called after the check.
        cache_dir: cache folder; None uses Keras's (`KERAS_HOME`, by default `~/.keras`).

    Returns:
        A `pathlib.Path`.

    Raises:
        FileNotFoundError: if the base address has no such file.
        ConnectionError: if the server cannot be reached, refuses, is too slow, or closes the connection early.
        OSError: if the cache is not writable.
        ValueError: if the download is too large or is not a valid checkpoint, or the base address is invalid.
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
        _download(url, partial, most_bytes(release))
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


def most_bytes(release):
    """Return the maximum size of a release in bytes: its stated size, which is rounded, plus 5 % and 1 MiB."""
    return round(1.05 * release.bytes) + 2**20


def release_url(release):
    """Return the quoted address of a release, below `KERAS_VIT_WEIGHTS_URL` if that is set.

    The result does not contain the user and the password of that variable.

    Raises:
        ValueError: if the variable is not an `https`, `http` or `file` address.
    """
    base = _base()
    if base is None:
        return urllib.parse.quote(release.address, safe="/:")
    return f"{base.address}/{urllib.parse.quote(release.path)}"


class _Base(typing.NamedTuple):
    """The parts of `KERAS_VIT_WEIGHTS_URL`: the address without login, the login, and its folder in the cache."""

    address: str
    login: str | None
    folder: str


def _base():
    value = os.environ.get(URL_VARIABLE)
    if not value:
        return None
    try:
        parts = urllib.parse.urlsplit(value)
        is_valid = _is_base(parts)
    except ValueError:  # its message may contain the password
        is_valid = False
    if not is_valid:
        shown = re.sub(r"^(\w+://)?.*@", r"\1", value, flags=re.DOTALL)
        raise ValueError(
            f"{URL_VARIABLE} must begin with one of {', '.join(_SCHEMES)} and ://, and have no ? or #; got {shown!r}"
        )
    host = parts.netloc.rpartition("@")[2]
    address = urllib.parse.urlunsplit(parts._replace(netloc=host)).rstrip("/")
    login = None
    if parts.username is not None:
        login = ":".join(urllib.parse.unquote(text or "") for text in (parts.username, parts.password))
    digest = hashlib.sha256(f"{parts.username or ''}@{address}".encode()).hexdigest()
    return _Base(address, login, f"mirror-{digest[:16]}")


def _is_base(parts):
    has_host = bool(parts.hostname) or parts.scheme == "file"
    return parts.scheme in _SCHEMES and has_host and parts.port != 0 and not (parts.query or parts.fragment)


def keras_home():
    """Return the folder of Keras's cache; Keras does not publish the rule, so it is repeated here."""
    if "KERAS_HOME" in os.environ:
        return pathlib.Path(os.environ["KERAS_HOME"])
    home = os.path.expanduser("~")
    return pathlib.Path(home if os.access(home, os.W_OK) else "/tmp") / ".keras"


def check_archive(path):
    """Raise `ValueError` unless the file is a complete `.npz` of plain arrays.

    Every member must be a `.npy` without Python objects, with the length that its header states and the checksum that
    the archive states. Members are read in chunks to save memory.
    """
    with damage.explained("a whole .npz was expected", path), zipfile.ZipFile(path) as archive:
        members = npz.members(archive)
        if not members:
            raise ValueError("the archive is empty, where arrays were expected")
        for member in members:
            npz.check_member(archive, member)
            with archive.open(member) as file:
                while file.read(npz.CHUNK):  # zipfile compares the checksum at the end
                    pass


def _check(path, validate):
    check_archive(path)
    if validate is not None:
        validate(path)


def _cache_folder(release, cache_dir):
    home = keras_home() if cache_dir is None else pathlib.Path(cache_dir)
    base = _base()
    return home.expanduser() / "models" / "keras_vit" / (base.folder if base else "") / release.directory


def _remove_stale(path):
    """Remove what interrupted processes left of this file; a recent one may be another process's download."""
    for partial in path.parent.glob(f".{glob.escape(path.stem)}.*.partial.npz"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                partial.unlink()


def _download(url, partial, most):
    folder, base = partial.parent, _base()
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cache must be writable; KERAS_HOME sets another", str(folder))
    LOGGER.info("Downloading %s to %s", url, folder)
    try:
        with open(partial, "wb") as file:
            transfer(url, file, most, base.login if base else None)
    except TooLarge as error:
        limit = f"expected at most {most} bytes, 5 % and 1 MiB above the size of the release, at {url}"
        raise ValueError(f"{limit}; {error}") from error
    except (OSError, http.client.HTTPException) as cause:
        raise _transfer_error(url, partial, cause) from cause


def _transfer_error(url, partial, cause):
    remedy = f"the environment variable {URL_VARIABLE} names another base address"
    if isinstance(cause, urllib.error.HTTPError):
        cause.close()
        kind = FileNotFoundError if cause.code == 404 else ConnectionError
        return kind(f"expected a file at {url}; the server answered {cause.code} {redacted(str(cause.msg))}; {remedy}")
    reason = cause.reason if isinstance(cause, urllib.error.URLError) else cause
    if isinstance(reason, FileNotFoundError):  # from a file:// address
        return FileNotFoundError(f"expected a file at {url}; there is none; {remedy}")
    if isinstance(cause, (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException)):
        return ConnectionError(f"expected the whole file at {url}; the transfer failed: {reason}; {remedy}")
    return OSError(cause.errno, f"downloading {url} failed: {cause.strerror}", str(partial.parent))
