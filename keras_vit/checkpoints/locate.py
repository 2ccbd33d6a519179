"""locate: the user's `weights` argument -> a local file; published checkpoints are downloaded to Keras's cache."""

import errno
import functools
import hashlib
import http.client
import os
import pathlib
import re
import typing
import urllib.error
import urllib.parse
import warnings

from keras_vit.checkpoints import hub
from keras_vit.checkpoints.foreign_names import ForeignName, find_foreign, near_names, task_models
from keras_vit.checkpoints.npz import read_npz
from keras_vit.checkpoints.readers import explained
from keras_vit.checkpoints.releases import find_address, find_release
from keras_vit.checkpoints.releases.release import Release
from keras_vit.checkpoints.transfer import TooLarge, redacted, transfer
from keras_vit.files import Refused, check_regular, keras_home, replace_file
from keras_vit.logs import LOGGER

URL_VARIABLE = "KERAS_VIT_WEIGHTS_URL"

# ends of paths; a name in .npz may be that of a release
_ONLY_PATHS = (".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin", ".ckpt", ".pkl")
_SCHEMES = ("https", "http", "file")


class Located(typing.NamedTuple):
    """Weights that were found: a local path, or the address of a repository on the hub, or a `Release` to download.

    `foreign` is the row of foreign_names.tsv of weights that have a name of timm or of the hub.
    """

    path: pathlib.Path | None = None
    address: str | None = None
    release: Release | None = None
    foreign: ForeignName | None = None

    @property
    def arguments(self) -> dict:
        """Return the arguments of `create_model` that the tables state for these weights."""
        return {**(self.release.arguments if self.release else {}), **(self.foreign.arguments if self.foreign else {})}


def locate(weights, model=None, image_size=None):
    """Find what `weights` stands for; nothing is downloaded.

    Args:
        weights: a path; the name of a release, such as `imagenet21k+imagenet2012` or `augreg`, or of any published
            file; or a repository of the Hugging Face hub, `hf://org/repo` or `hf://org/repo@revision`.
        model: name of the variant, to select a release; with None, `weights` is a name of timm or of the hub instead of
            the name of a release.
        image_size: (height, width) in pixels, to select the nearest published size.

    Returns:
        A `Located`, for `fetch`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if `weights` is neither a path nor a known release.
    """
    argument = "source" if model is None else "weights"
    if not isinstance(weights, (str, os.PathLike)):
        raise TypeError(f"{argument} must be a path, the name of a release or hf://org/repo; got {weights!r}")
    if not os.fspath(weights):
        raise ValueError(f"{argument} must not be empty ('.' is the current folder); got {argument}=''")
    text = os.fspath(weights)
    path = pathlib.Path(text).expanduser()
    is_there = os.path.exists(check_regular(path))
    foreign = None if is_there else find_foreign(text)
    if foreign is not None and model is None:
        text = foreign.weights
    elif model is None and not is_there and text in task_models():
        text = f"{hub.PREFIX}{text}"
    if text.startswith(hub.PREFIX):
        return Located(address=text, release=model and find_address(model, text), foreign=foreign)
    if is_there or isinstance(weights, os.PathLike) or path.suffix in _ONLY_PATHS:
        return Located(path)
    if model is None:
        raise FileNotFoundError(
            f"source={text!r} is no file and no known name{near_names(text)}: it must be a file, a folder, "
            "hf://org/repo or a name of timm or of the Hugging Face hub (create_model takes our names)"
        )
    try:
        release = find_release(model, text, image_size)
    except ValueError as error:
        if path.suffix == ".npz":  # the name of a published file, or a path
            raise FileNotFoundError(f"there is no such file here, and {error}") from None
        raise
    return Located(address=release.address if release.is_on_hub else None, release=release)


def fetch(located):
    """Return the path of located weights, downloaded if needed.

    Raises:
        FileNotFoundError, ConnectionError, PermissionError: if the file does not exist or cannot be downloaded.
        ImportError: if a repository is given and huggingface_hub is not installed.
        ValueError: see `fetch_release` and `hub.fetch_repository`.
    """
    path, address, release, _ = located
    if address is not None:
        return hub.fetch_repository(address, **({} if release is None else {"most": most_bytes(release)}))
    return fetch_release(release) if path is None else path


def fetch_release(release):
    """Return the path of a published file in the cache; download it first if needed.

    The file is downloaded under a temporary name to `models/keras_vit/<directory>` of Keras's cache (`KERAS_HOME`, by
    default `~/.keras`), within the limits of `most_bytes` and of `transfer`, checked (see `check_archive`) and renamed.
    Each value of `KERAS_VIT_WEIGHTS_URL` has its own folder in `models/keras_vit`. A failed download leaves no file. A
    cached file that fails the check is downloaded again, with a warning.

    Args:
        release: a `Release` that is a file, not a repository of the hub.

    Returns:
        A `pathlib.Path`.

    Raises:
        FileNotFoundError: if the base address has no such file.
        ConnectionError: if the server cannot be reached, refuses, is too slow, or closes the connection early.
        OSError: if the cache is not writable.
        ValueError: if the download is too large or is not a valid checkpoint, or the base address is invalid.
    """
    url, login, mirror = release_url(release)
    folder = keras_home() / "models" / "keras_vit" / mirror / release.directory
    path = folder / f"{release.file}.npz"
    if path.exists():
        try:
            check_archive(path)
            return path
        except ValueError as error:
            warnings.warn(f"{path} is damaged and is downloaded again: {error}", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "cache must be writable; set KERAS_HOME to use another", str(folder))
    LOGGER.info("Downloading %s to %s", url, folder)
    replace_file(path, functools.partial(_download, release, url, login, folder))
    return path


def most_bytes(release):
    """Return the maximum size of a release in bytes: its stated size, which is rounded, plus 5 % and 1 MiB."""
    return round(1.05 * release.bytes) + 2**20


def release_url(release):
    """Return the quoted address of a release, the login for it, and the folder of its server in the cache.

    If `KERAS_VIT_WEIGHTS_URL` is set, the address starts with its value, without user and password. The login is
    `"user:password"` from that value, or None.

    Raises:
        ValueError: if the variable is not an `https`, `http` or `file` address.
    """
    value = os.environ.get(URL_VARIABLE)
    if not value:
        return urllib.parse.quote(release.address, safe="/:"), None, ""
    try:
        parts = urllib.parse.urlsplit(value)
        is_valid = parts.scheme in _SCHEMES and (bool(parts.hostname) or parts.scheme == "file") and parts.port != 0
    except ValueError:  # its message may contain the password
        is_valid = False
    if not is_valid or parts.query or parts.fragment:
        shown = re.sub(r"^(\w+://)?.*@", r"\1", value, flags=re.DOTALL)
        raise ValueError(
            f"{URL_VARIABLE} must begin with one of {', '.join(_SCHEMES)} and ://, and have no ? or #; got {shown!r}"
        )
    base = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    login = None
    if parts.username is not None:
        login = ":".join(urllib.parse.unquote(text or "") for text in (parts.username, parts.password))
    digest = hashlib.sha256(f"{parts.username or ''}@{base}".encode()).hexdigest()
    return f"{base}/{urllib.parse.quote(release.path)}", login, f"mirror-{digest[:16]}"


def check_archive(path):
    """Raise `ValueError` unless the file is a complete `.npz` of plain arrays.

    Every member must be a `.npy` without Python objects, with the length that its header states and the checksum that
    the archive states. Members are read in chunks to save memory.
    """
    with explained("a whole .npz was expected", path):
        entries = read_npz(path).entries
        if not entries:
            raise Refused("the archive is empty, where arrays were expected")
        for entry in entries.values():
            entry.check()


def _download(release, url, login, folder, partial):
    most = most_bytes(release)
    try:
        with open(partial, "wb") as file:
            transfer(url, file, most, login)
    except TooLarge as error:
        limit = f"expected at most {most} bytes, 5 % and 1 MiB above the size of the release, at {url}"
        raise ValueError(f"{limit}; {error}") from error
    except (OSError, http.client.HTTPException) as cause:
        raise _transfer_error(url, folder, cause) from cause
    try:
        check_archive(partial)
    except ValueError as error:
        expected, size = f"{release.path} of about {release.bytes / 2**20:.1f} MiB", partial.stat().st_size
        raise ValueError(f"expected {expected} from {url}; got {size} bytes: {error}") from error


def _transfer_error(url, folder, cause):
    remedy = f"set the environment variable {URL_VARIABLE} to use another base address"
    if isinstance(cause, urllib.error.HTTPError):
        cause.close()
        kind = FileNotFoundError if cause.code == 404 else ConnectionError
        return kind(f"expected a file at {url}; the server answered {cause.code} {redacted(str(cause.msg))}; {remedy}")
    reason = cause.reason if isinstance(cause, urllib.error.URLError) else cause
    if isinstance(reason, FileNotFoundError):  # from a file:// address
        return FileNotFoundError(f"expected a file at {url}; there is none; {remedy}")
    if isinstance(cause, (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException)):
        return ConnectionError(f"expected the whole file at {url}; the transfer failed: {reason}; {remedy}")
    return OSError(cause.errno, f"downloading {url} failed: {cause.strerror}", str(folder))
