"""locate: what a user writes for `weights` -> a file on this machine, downloaded if it has to be."""

import os
import pathlib

from keras_vit.checkpoints import hub
from keras_vit.checkpoints.download import fetch, most_bytes
from keras_vit.checkpoints.releases import find_address, find_release

_SUFFIXES = (".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin", ".ckpt", ".pkl")


def locate(weights, model, image_size):
    """Finds the file that `weights` names.

    Args:
        weights: a path; the name of a release, such as `imagenet21k+imagenet2012`, `augreg` or any published file; or
            `hf://org/repo` or `hf://org/repo@revision` for a repository of Hugging Face's hub. Repositories, among
            them the releases of DeiT and Swin, need the package huggingface_hub.
        model: name of the variant, to choose among releases.
        image_size: (height, width) in pixels, to choose the nearest published size.

    Returns:
        Pair (path of the file or folder, its `Release` or None).

    Raises:
        FileNotFoundError, ConnectionError, PermissionError: if there is no such file or it cannot be fetched.
        ValueError: if `weights` is neither a path nor a known release.
        ImportError: for a repository without huggingface_hub.
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
    """Fetches a repository; that of a release may be as large as the release."""
    return hub.fetch_repository(address, **({} if release is None else {"most": most_bytes(release)}))
