"""hub: a repository of Hugging Face's hub -> a folder on this machine, by the optional package huggingface_hub."""

import contextlib
import functools
import pathlib
import warnings

from keras_vit.checkpoints import shards

PREFIX = "hf://"

_CONFIG = "config.json"
_PREPROCESSOR = "preprocessor_config.json"
_WEIGHTS = "model.safetensors"


def fetch_repository(address):
    """Fetches the weights of a repository and what describes them, or finds them in the cache.

    Only `config.json`, `preprocessor_config.json` where there is one, and `model.safetensors` (or the files that
    `model.safetensors.index.json` lists) are fetched, all of one commit. The rest is huggingface_hub's: its cache
    (`HF_HOME`), endpoint (`HF_ENDPOINT`), access token (`HF_TOKEN`), progress bar and offline mode (`HF_HUB_OFFLINE`).
    Without a connection, what the cache holds is taken.

    Args:
        address: `hf://org/repo`, or `hf://org/repo@revision` with a branch, a tag or a commit.

    Returns:
        Path of the folder, for `readers.open_checkpoint`.

    Raises:
        ValueError: if the address is none.
        ImportError: without huggingface_hub.
        FileNotFoundError: if there is no such repository or revision, or it has no `config.json` or no safetensors.
        PermissionError: if the repository wants its conditions accepted first.
        ConnectionError: if the hub cannot be reached or refuses, and the cache does not help.
    """
    repository, revision = _parse(address)
    try:
        import huggingface_hub.errors
    except ImportError as error:
        raise ImportError(f"weights={address!r} needs huggingface_hub: pip install huggingface_hub") from error
    with _explained(address, huggingface_hub.errors):
        config = _download(huggingface_hub, repository, _CONFIG, revision)
        if config is None:
            raise FileNotFoundError(f"{address} must hold {_CONFIG}; it does not")
        folder = config.parent
        commit = folder.name  # the cache has a folder for each commit
        download = functools.partial(_download_of_commit, huggingface_hub, repository, commit=commit)
        _fetch_preprocessor(download, address, huggingface_hub.errors)
        if download(_WEIGHTS) is None:
            _fetch_parts(download, address)
    return folder


def _parse(address):
    path, at, revision = address.removeprefix(PREFIX).rstrip("/").partition("@")
    parts = path.strip("/").split("/")
    if len(parts) != 2 or not all(parts) or (at and not revision):
        raise ValueError(f"weights from the hub must be hf://org/repo; got {address!r} (or hf://org/repo@revision)")
    return "/".join(parts), revision or None


def _download(hub, repository, name, revision):
    """Path of a file of the repository, or None if that has no such file."""
    try:
        return pathlib.Path(hub.hf_hub_download(repository, name, revision=revision))
    except hub.errors.LocalEntryNotFoundError:  # no connection: it may be there
        raise
    except hub.errors.EntryNotFoundError:
        return None


def _download_of_commit(hub, repository, name, commit):
    """The same; what a commit lacked once, it always lacks, and the cache remembers."""
    if hub.try_to_load_from_cache(repository, name, revision=commit) is hub._CACHED_NO_EXIST:
        return None
    return _download(hub, repository, name, commit)


def _fetch_preprocessor(download, address, errors):
    try:
        download(_PREPROCESSOR)
    except errors.LocalEntryNotFoundError:
        warnings.warn(
            f"the cache has no {_PREPROCESSOR} of {address}, and the hub cannot be asked whether there is one: "
            "check the preprocessing of the model",
            stacklevel=2,
        )


def _fetch_parts(download, address):
    index = download(shards.INDEX)
    if index is None:
        raise FileNotFoundError(
            f"{address} must hold {_WEIGHTS} or {shards.INDEX}; it does not. Other files, such as PyTorch's "
            "pytorch_model.bin, are not read from the hub: they are pickles, which can run code when read. "
            "Convert them once with safetensors.torch.save_file, and give the path of the result as weights"
        )
    for name in shards.parts_of(index):
        if download(name) is None:
            raise FileNotFoundError(f"{address} must hold {name}, which its {shards.INDEX} lists; it does not")


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
