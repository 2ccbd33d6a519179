"""Files of weights -> {name: array}, lazily and never unpickled: .npz, .safetensors, .weights.h5, .keras, folders."""

import dataclasses
import pathlib

import safetensors

from keras_vit.checkpoints import damage, json_object, shards
from keras_vit.checkpoints.entries import Checkpoint, Entry, as_float32
from keras_vit.checkpoints.hdf5 import read_keras, read_weights_h5
from keras_vit.checkpoints.npz import read_npz

_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl")


def open_checkpoint(path):
    """Opens a file of weights, or a folder with `config.json` and `model.safetensors`; reads names and shapes only.

    Args:
        path: `.npz`, `.safetensors`, `.weights.h5`, `.keras` or a folder; its weights may be split, see `shards`.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: if nothing is there.
        ValueError: if it is of another kind, damaged or holds pickled objects; the message says what was found.
    """
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"weights must be an existing file or folder; got {str(path)!r}")
    if path.is_dir():
        folder, path = path, path / "model.safetensors"
        if not path.is_file() and (folder / shards.INDEX).is_file():
            return _read_parts(folder / shards.INDEX)
        if not path.is_file():
            raise FileNotFoundError(f"a folder of weights must hold model.safetensors; {str(path.parent)!r} does not")
    for suffix, read in _READERS.items():
        if path.name.endswith(suffix):
            return read(path)
    if path.suffix in _PICKLED:
        raise ValueError(
            f"weights must not be a pickle, which can run code when read; got {str(path)!r}. "
            "Convert it once with safetensors.torch.save_file"
        )
    raise ValueError(f"weights must be one of {', '.join(_READERS)} or a folder; got {str(path)!r}")


def _read_safetensors(path):
    with damage.explained(f"{str(path)!r} must be a whole .safetensors file", path, more=_BAD_SAFETENSORS):
        file = safetensors.safe_open(path, framework="numpy")
        names, metadata = list(file.keys()), dict(file.metadata() or {})
        slices = {name: file.get_slice(name) for name in names}
        entries = {
            name: Entry(name, tuple(part.get_shape()), part.get_dtype(), _reader(path, file, name))
            for name, part in slices.items()
        }
    config, preprocessor = (_read_json(path.parent / name) for name in ("config.json", "preprocessor_config.json"))
    return Checkpoint(path, "safetensors", entries, metadata, config, preprocessor)


def _read_parts(index):
    parts = [_read_safetensors(index.with_name(name)) for name in shards.parts_of(index)]
    entries = {name: entry for part in parts for name, entry in part.entries.items()}
    return dataclasses.replace(parts[0], path=index, entries=entries)


def _reader(path, file, name):
    def read():
        with damage.explained(f"{str(path)!r}: array {name!r} cannot be read", path, more=_BAD_SAFETENSORS):
            return as_float32(file.get_tensor(name), name)

    return read


def _read_json(path):
    if not path.is_file():
        return None
    return json_object.parse(repr(str(path)), path.stat().st_size, path.read_bytes)


_BAD_SAFETENSORS = (safetensors.SafetensorError, TypeError, KeyError)
_READERS = {
    ".npz": read_npz,
    ".safetensors": _read_safetensors,
    ".weights.h5": read_weights_h5,
    ".keras": read_keras,
}
