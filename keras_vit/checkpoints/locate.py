"""locate: the user's `weights` argument -> a local file, downloaded if needed."""

import os
import pathlib

from keras_vit.checkpoints import hub
from keras_vit.checkpoints.download import fetch, most_bytes
from keras_vit.checkpoints.releases import find_address, find_release

_SUFFIXES = (".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin", ".ckpt", ".pkl")


def locate(weights, model, image_size):
    """Find the file that `weights` stands for.

    Args:
        weights: a path; the name of a release, such as `imagenet21k+imagenet2012` or `augreg`, or of any published
            file; or a repository of the Hugging Face hub, `hf://org/repo` or `hf://org/repo@revision`. Repositories,
            which include the releases of DeiT and Swin, need the package huggingface_hub.
        model: name of the variant, to select a release.
        image_size: (height, width) in pixels, to select the nearest published size.

    Returns:
        Pair (path of the file or folder, its `Release` or None).

    Raises:
        FileNotFoundError, ConnectionError, PermissionError: if the file does not exist or cannot be downloaded.
        ValueError: if `weights` is neither a path nor a known release.
        ImportError: if a repository is given and huggingface_hub is not installed.
    """
    if not isinstance(weights, (str, os.PathLike)):
        raise TypeError(f"weights must be a path, the name of a release or hf://org/repo; got {weights!r}")
    if not os.fspath(weights):
        raise ValueError("weights must not be empty ('.' is the current folder); got weights=''")
    text = os.fspath(weights)
    if text.startswith(hub.PREFIX):
        return _fetch_repository(text, release := find_address(model, text)), release
    path = pathlib.Path(text).expanduser()
    if path.exists() or isinstance(weights, os.PathLike) or path.suffix in _SUFFIXES:
        return path, None
    try:
        release = find_release(model, text, image_size)
    except ValueError as error:
        if path.suffix == ".npz":  # the name of a published file, or a path
            raise FileNotFoundError(f"there is no such file here, and {error}") from None
        raise
    return (_fetch_repository(release.address, release) if release.is_on_hub else fetch(release)), release


def _fetch_repository(address, release):
    """Download a repository; a release may have the size that the table states."""
    return hub.fetch_repository(address, **({} if release is None else {"most": most_bytes(release)}))
