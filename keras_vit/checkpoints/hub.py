"""hub: a repository of Hugging Face's hub -> a folder on this machine, by the optional package huggingface_hub."""

import contextlib
import functools
import inspect
import pathlib
import warnings

from keras_vit.checkpoints import json_object, shards
from keras_vit.checkpoints.transfer import TooLarge

PREFIX = "hf://"

_CONFIG = "config.json"
_PREPROCESSOR = "preprocessor_config.json"
_WEIGHTS = "model.safetensors"
_MAX_BYTES = 16 * 2**30  # of the weights of a repository that is no release; those of a ViT-G/14 take 7.4 GB


def fetch_repository(address, most=_MAX_BYTES):
    """Fetches the weights of a repository and what describes them, or finds them in the cache.

    Only `config.json`, `preprocessor_config.json` where there is one, and `model.safetensors` (or the files that
    `model.safetensors.index.json` lists) are fetched, all of one commit. The rest is huggingface_hub's: its cache
    (`HF_HOME`), endpoint (`HF_ENDPOINT`), access token (`HF_TOKEN`), progress bar and offline mode (`HF_HUB_OFFLINE`).
    Without a connection, what the cache holds is taken. A JSON file of more than `json_object.MAX_BYTES` and weights of
    more than `most` are refused when the hub states their size, and while they come.

    Args:
        address: `hf://org/repo`, or `hf://org/repo@revision` with a branch, a tag or a commit.
        most: largest number of bytes of all files of weights together.

    Returns:
        Path of the folder, for `readers.open_checkpoint`.

    Raises:
        ValueError: if the address is none, or a file is too large.
        ImportError: without huggingface_hub 1.2 or later.
        FileNotFoundError: if there is no such repository or revision, or it has no `config.json` or no safetensors.
        PermissionError: if the repository wants its conditions accepted first.
        ConnectionError: if the hub cannot be reached or refuses, and the cache does not help.
    """
    repository, revision = _parse(address)
    needed = f"weights={address!r} needs huggingface_hub"
    try:
        import huggingface_hub.errors
    except ImportError as error:
        raise ImportError(f"{needed}: pip install huggingface_hub") from error
    if "tqdm_class" not in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        found = huggingface_hub.__version__
        raise ImportError(f"{needed}>=1.2; got {found}: pip install --upgrade huggingface_hub")
    with _explained(address, huggingface_hub.errors):
        config = _download(huggingface_hub, repository, _CONFIG, revision)
        if config is None:
            raise FileNotFoundError(f"{address} must hold {_CONFIG}; it does not")
        folder = config.parent
        commit = folder.name  # the cache has a folder for each commit
        download = functools.partial(_download_of_commit, huggingface_hub, repository, commit=commit)
        _fetch_preprocessor(download, address, huggingface_hub.errors)
        if download(_WEIGHTS, most=most) is None:
            _fetch_parts(download, address, most)
    return folder


def _parse(address):
    path, at, revision = address.removeprefix(PREFIX).rstrip("/").partition("@")
    parts = path.strip("/").split("/")
    if len(parts) != 2 or not all(parts) or (at and not revision):
        raise ValueError(f"weights from the hub must be hf://org/repo; got {address!r} (or hf://org/repo@revision)")
    return "/".join(parts), revision or None


def _download(hub, repository, name, revision, most=json_object.MAX_BYTES):
    """Path of a file of the repository, or None if that has no such file."""
    try:
        bar = _bounded(hub.utils.tqdm, f"{PREFIX}{repository}: {name}", most)
        return pathlib.Path(hub.hf_hub_download(repository, name, revision=revision, tqdm_class=bar))
    except hub.errors.LocalEntryNotFoundError:  # no connection: it may be there
        raise
    except hub.errors.EntryNotFoundError:
        return None


def _bounded(bar, name, most):
    """The progress bar of huggingface_hub, which hears the size of a file before its first byte, and of every piece."""

    class Bounded(bar):
        def __init__(self, *args, total=None, initial=0, **kwargs):
            self._received = 0
            self._receive(max(total or 0, initial))
            self._received = initial
            super().__init__(*args, total=total, initial=initial, **kwargs)

        def update(self, n=1):
            self._receive(n)
            return super().update(n)

        def _receive(self, n):
            self._received += n
            if self._received > most:
                raise TooLarge(f"{name} must not exceed {most} bytes; the hub sends {self._received} or more")

    return Bounded


def _download_of_commit(hub, repository, name, commit, most=json_object.MAX_BYTES):
    """The same; what a commit lacked once, it always lacks, and the cache remembers."""
    if hub.try_to_load_from_cache(repository, name, revision=commit) is hub._CACHED_NO_EXIST:
        return None
    return _download(hub, repository, name, commit, most)


def _fetch_preprocessor(download, address, errors):
    try:
        download(_PREPROCESSOR)
    except errors.LocalEntryNotFoundError:
        warnings.warn(
            f"the cache has no {_PREPROCESSOR} of {address}, and the hub cannot be asked whether there is one: "
            "check the preprocessing of the model",
            stacklevel=2,
        )


def _fetch_parts(download, address, most):
    index = download(shards.INDEX)
    if index is None:
        raise FileNotFoundError(
            f"{address} must hold {_WEIGHTS} or {shards.INDEX}; it does not. Other files, such as PyTorch's "
            "pytorch_model.bin, are not read from the hub: they are pickles, which can run code when read. "
            "Convert them once with safetensors.torch.save_file, and give the path of the result as weights"
        )
    for name in shards.parts_of(index):
        part = download(name, most=most)
        if part is None:
            raise FileNotFoundError(f"{address} must hold {name}, which its {shards.INDEX} lists; it does not")
        most -= part.stat().st_size


@contextlib.contextmanager
def _explained(address, errors):
    """Turns huggingface_hub's errors into those of Python that mean the same; the original is their cause."""
    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        raise ConnectionError(f"{address} is not whole in the cache and cannot be fetched: {error}") from error
    except errors.GatedRepoError as error:
        raise PermissionError(f"{address} asks for its conditions to be accepted on its page: {error}") from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{address} must be a repository that is there and, if it is private, open to your token: {error}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{address} must name a branch, a tag or a commit: {error}") from error
    except errors.HfHubHTTPError as error:
        raise ConnectionError(f"{address} cannot be fetched: {error}") from error
