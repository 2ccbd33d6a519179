"""Readers of weights files: .npz, .safetensors, .weights.h5, .keras and folders, lazy and without pickle."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import safetensors

from keras_vit.checkpoints import damage, json_object, shards
from keras_vit.checkpoints.entries import Checkpoint, Entry, as_float32, from_float8
from keras_vit.checkpoints.hdf5 import read_keras, read_weights_h5
from keras_vit.checkpoints.npz import read_npz

_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl")
_FLOAT8 = ("F8_E4M3", "F8_E5M2")
_NUMPY_HAS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64", "C64")


def open_checkpoint(path):
    """Open a weights file, or a folder with `config.json` and `model.safetensors`; read names and shapes only.

    Args:
        path: `.npz`, `.safetensors`, `.weights.h5`, `.keras` or a folder; the weights may be split, see `shards`.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: if the path does not exist.
        ValueError: if the file is of another kind, damaged or holds pickled objects; the message says which.
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
    checkpoint = _open_safetensors(path)
    _check_scales(path, checkpoint.entries)
    return checkpoint


def _open_safetensors(path):
    with damage.explained(f"{str(path)!r} must be a whole .safetensors file", path, more=_BAD_SAFETENSORS):
        file = safetensors.safe_open(path, framework="numpy")
        names, metadata = list(file.keys()), dict(file.metadata() or {})
        slices = {name: file.get_slice(name) for name in names}
        entries = {
            name: Entry(name, tuple(part.get_shape()), part.get_dtype(), _reader(path, file, name, part.get_dtype()))
            for name, part in slices.items()
        }
    config, preprocessor = (_read_json(path.parent / name) for name in ("config.json", "preprocessor_config.json"))
    return Checkpoint(path, "safetensors", entries, metadata, config, preprocessor)


def _check_scales(path, entries):
    """Reject float8 arrays that need a scale from another array of the file, such as `weight_scale_inv`."""
    scales = {}  # keys: name of the array or layer that it scales; "" is the whole file
    for name in entries:
        owner, _, last = name.rpartition(".")
        if re.search("scaled?(_|$)", last):
            scales[owner] = name
    for name in (name for name, entry in entries.items() if entry.dtype in _FLOAT8):
        found = {scales.get(owner, name) for owner in (name, name.rpartition(".")[0], "")} - {name}
        if found:
            raise ValueError(
                f"{str(path)!r} must hold its values themselves; {name!r} is {entries[name].dtype} and has the scale "
                f"{min(found)!r}, which is not applied (convert it to float32 with the library that wrote it)"
            )


def _read_parts(index):
    parts = [_open_safetensors(index.with_name(name)) for name in shards.parts_of(index)]
    entries = {name: entry for part in parts for name, entry in part.entries.items()}
    _check_scales(index, entries)
    return dataclasses.replace(parts[0], path=index, entries=entries)


def _reader(path, file, name, dtype):
    def read():
        if dtype in _FLOAT8:
            return from_float8(_bytes_of(path, name), dtype)
        if dtype not in _NUMPY_HAS:
            raise ValueError(f"array {name!r} must hold numbers that NumPy has; got dtype {dtype} in {str(path)!r}")
        with damage.explained(f"{str(path)!r}: array {name!r} cannot be read", path, more=_BAD_SAFETENSORS):
            return as_float32(file.get_tensor(name), name)

    return read


def _bytes_of(path, name):
    """Return the bytes of a float8 array, which NumPy has no type for; safetensors has checked the header."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        start, end = entry["data_offsets"]
        file.seek(8 + length + start)
        return np.frombuffer(file.read(end - start), "u1").reshape(entry["shape"])


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
