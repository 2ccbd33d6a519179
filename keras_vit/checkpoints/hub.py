"""Download of a repository of the Hugging Face hub to a local folder, with the optional package huggingface_hub."""

import contextlib
import functools
import inspect
import pathlib
import warnings

from keras_vit.checkpoints.foreign_names import near_names
from keras_vit.checkpoints.readers import INDEX, OPENCLIP, PROCESSORS, parts_of
from keras_vit.checkpoints.transfer import TooLarge
from keras_vit.files import MAX_JSON

PREFIX = "hf://"

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_PATIENCE = 5  # seconds that the hub may take to answer
_MAX_BYTES = 32 * 2**30  # maximum for the weights of a repository that is not a release; DINOv3-7B has 26.9 GB


def fetch_repository(address, most=_MAX_BYTES, beside=()):
    """Download the weights of a repository and their JSON files, or find them in the cache.

    It downloads `config.json`, `preprocessor_config.json` and `processor_config.json` if present, and
    `model.safetensors` (or the files that `model.safetensors.index.json` lists, or OpenCLIP's files), all of one
    commit. huggingface_hub controls the cache (`HF_HOME`), the endpoint (`HF_ENDPOINT`), the access token (`HF_TOKEN`),
    the progress bar and the offline mode (`HF_HUB_OFFLINE`). Without a connection, the cached files are used. JSON
    files of more than `files.MAX_JSON` and weights of more than `most` bytes raise an error, either when the hub states
    their size or during the download.

    Args:
        address: `hf://org/repo`, or `hf://org/repo@revision` with a branch, a tag or a commit.
        most: maximum total size of the weights files in bytes.
        beside: names of other files to download, if present, each with its maximum size in bytes.

    Returns:
        Path of the folder, for `readers.open_checkpoint`.

    Raises:
        ValueError: if the address is invalid, or a file is too large.
        ImportError: if huggingface_hub 1.2 or later is not installed.
        FileNotFoundError: if the repository or revision does not exist, or has no `config.json` or no safetensors.
        PermissionError: if the conditions of the repository must be accepted first.
        ConnectionError: if the hub cannot be reached or refuses, and the cache lacks the files.
    """
    repository, revision = _parse(address)
    hub = _import_hub(address)
    with _explained(address, hub.errors):
        download = functools.partial(_download, hub, repository)
        config, weights = download(_CONFIG, revision), _WEIGHTS
        if config is None:
            weights, name = OPENCLIP
            config = download(name, revision)
        if config is None:
            raise FileNotFoundError(f"{address} must hold {_CONFIG}; it does not")
        folder, commit = config.parent, config.parent.name  # the cache has one folder per commit
        try:
            for name in reversed(PROCESSORS):
                download(name, commit, is_commit=True)
        except hub.errors.LocalEntryNotFoundError:
            warnings.warn(
                f"the cache has no {name} of {address}, and it is unknown whether the hub has one: "
                "check the preprocessing of the model",
                stacklevel=2,
            )
        for name, size in dict(beside).items():
            download(name, commit, size, is_commit=True)
        if download(weights, commit, most, is_commit=True) is None:
            _download_parts(address, functools.partial(download, revision=commit, is_commit=True), most)
    return folder


def _import_hub(address):
    """Return huggingface_hub; raise `ImportError` if it is not installed or too old."""
    needed = f"weights={address!r} needs huggingface_hub"
    try:
        import huggingface_hub.errors
    except ImportError as error:
        raise ImportError(f"{needed}: pip install huggingface_hub") from error
    if "tqdm_class" not in inspect.signature(huggingface_hub.hf_hub_download).parameters:
        found = huggingface_hub.__version__
        raise ImportError(f"{needed}>=1.2; got {found}: pip install --upgrade huggingface_hub")
    return huggingface_hub


def _download_parts(address, download, most):
    """Download weights that are split over several files."""
    index = download(INDEX)
    if index is None:
        raise FileNotFoundError(
            f"{address} must hold {_WEIGHTS} or {INDEX}; it does not. Other files, such as PyTorch's "
            "pytorch_model.bin, are not read from the hub: they are pickles, which can run code when read. "
            "Convert them once with safetensors.torch.save_file, and give the path of the result as weights"
        )
    for name in parts_of(index):
        part = download(name, most=most)
        if part is None:
            raise FileNotFoundError(f"{address} must hold {name}, which its {INDEX} lists; it does not")
        most -= part.stat().st_size


def cached_address(folder):
    """Return the address of a folder that `fetch_repository` returned, or None for any other folder."""
    match folder.parts[-3:]:
        case [repository, "snapshots", commit] if repository.startswith("models--"):
            return f"{PREFIX}{repository.removeprefix('models--').replace('--', '/')}@{commit}"


def _parse(address):
    path, at, revision = address.removeprefix(PREFIX).rstrip("/").partition("@")
    parts = path.strip("/").split("/")
    if len(parts) != 2 or not all(parts) or (at and not revision):
        raise ValueError(f"weights from the hub must be hf://org/repo; got {address!r} (or hf://org/repo@revision)")
    return "/".join(parts), revision or None


def _download(hub, repo, name, revision, most=MAX_JSON, is_commit=False):
    """Return the path of a file of the repository, or None if the repository does not have it."""
    cached = hub.try_to_load_from_cache(repo, name, revision=revision)
    # A missing file of a commit is never requested again, because commits do not change.
    if is_commit and cached is hub._CACHED_NO_EXIST:
        return None
    try:
        if cached is None:
            _reach(hub)
        bar = _bounded(hub.utils.tqdm, f"{PREFIX}{repo}: {name}", most)
        return pathlib.Path(hub.hf_hub_download(repo, name, revision=revision, tqdm_class=bar, etag_timeout=_PATIENCE))
    except hub.errors.LocalEntryNotFoundError:  # without a connection, the file may still exist
        raise
    except hub.errors.EntryNotFoundError:
        return None


def _reach(hub):
    """Raise unless the hub answers: without a connection, huggingface_hub repeats its request for 23 s, or minutes."""
    try:
        hub.utils.get_session().head(hub.constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as error:  # a class of httpx, or of what its next version is called
        raise hub.errors.LocalEntryNotFoundError(f"{hub.constants.ENDPOINT} does not answer: {error}") from error


def _bounded(bar, name, most):
    """Return a progress bar class for huggingface_hub that raises an error above `most` bytes, stated or received."""

    class Bounded(bar):
        monitor_interval = 0  # or every class would start a thread that never ends

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


@contextlib.contextmanager
def _explained(address, errors):
    """Convert the errors of huggingface_hub to Python's own; the original error is the cause."""
    table = {  # a subclass before its base
        errors.LocalEntryNotFoundError: (ConnectionError, "is incomplete in the cache and cannot be downloaded"),
        errors.GatedRepoError: (
            PermissionError,
            "is gated: accept its conditions on its page on the hub, and set HF_TOKEN to a token of your account",
        ),
        errors.RepositoryNotFoundError: (FileNotFoundError, "must be an existing repository that your token may read"),
        errors.RevisionNotFoundError: (FileNotFoundError, "must name a branch, a tag or a commit"),
        errors.HfHubHTTPError: (ConnectionError, "cannot be fetched"),
    }
    try:
        yield
    except tuple(table) as error:
        kind, words = next(row for their, row in table.items() if isinstance(error, their))
        hint = near_names(address) if kind is FileNotFoundError else ""
        raise kind(f"{address} {words}{hint}: {error}") from error
