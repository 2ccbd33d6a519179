"""locate: what a user writes for `weights` -> a file on this machine, downloaded if it has to be."""

import os
import pathlib

from keras_vit.checkpoints.download import fetch
from keras_vit.checkpoints.releases import find_release

_HUB = "hf://"
_HUB_FILES = {"model.safetensors": True, "config.json": True, "preprocessor_config.json": False}  # name -> needed
_SUFFIXES = (".safetensors", ".h5", ".keras", ".pth", ".pt", ".bin", ".ckpt", ".pkl")


def locate(weights, model, image_size):
    """Finds the file that `weights` names.

    Args:
        weights: a path; the name of a release, such as `imagenet21k+imagenet2012`, `augreg` or any published file; or
            `hf://org/repo` for a repository of Hugging Face's hub (needs the package huggingface_hub).
        model: name of the variant, to choose among releases.
        image_size: (height, width) in pixels, to choose the nearest published size.

    Returns:
        Pair (path of the file or folder, its `Release` or None).

    Raises:
        FileNotFoundError, ConnectionError: if there is no such file or it cannot be fetched.
        ValueError: if `weights` is neither a path nor a known release.
        ImportError: for `hf://` without huggingface_hub.
    """
    if not isinstance(weights, (str, os.PathLike)):
        raise TypeError(f"weights must be a path, the name of a release or hf://org/repo; got {weights!r}")
    text = os.fspath(weights)
    if text.startswith(_HUB):
        return _from_hub(text), None
    path = pathlib.Path(text).expanduser()
    if path.exists() or isinstance(weights, os.PathLike) or path.suffix in _SUFFIXES:
        return path, None
    try:
        release = find_release(model, text, max(image_size))
    except ValueError as error:
        if path.suffix == ".npz":  # the name of a published file, or a path
            message = f"weights must be an existing file or a published one; got {text!r}: {error}"
            raise FileNotFoundError(message) from None
        raise
    return fetch(release), release


def _from_hub(address):
    parts = address.removeprefix(_HUB).strip("/").split("/")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"weights from the hub must be hf://org/repo; got {address!r}")
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(f"weights={address!r} needs huggingface_hub: pip install huggingface_hub") from error
    repository = "/".join(parts)
    for name, is_needed in _HUB_FILES.items():
        try:
            path = huggingface_hub.hf_hub_download(repository, name)
        except huggingface_hub.errors.EntryNotFoundError as error:
            if is_needed:
                raise FileNotFoundError(f"{address} must hold {name}: {error}") from error
            continue
        folder = pathlib.Path(path).parent
    return folder
