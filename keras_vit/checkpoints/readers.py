"""Files of weights -> {name: array}, read lazily and never unpickled: .npz, .safetensors, .weights.h5, .keras, folders."""

import dataclasses
import functools
import io
import json
import math
import pathlib
import zipfile
from collections.abc import Callable, Mapping

import h5py
import numpy as np
import safetensors

_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl")
_MAX_CONFIG_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file: its name there, its shape, and `read()`, which returns it (float32 if it is floating)."""

    name: str
    shape: tuple
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a file of weights holds.

    Attributes:
        path: where it lies.
        kind: `npz`, `safetensors` or `h5`.
        entries: dict from array name to `Entry`.
        metadata: dict of strings that the file carries beside its arrays.
        config: the `config.json` beside or inside it, a dict, or None.
        preprocessor: the `preprocessor_config.json` beside it, a dict, or None.
    """

    path: pathlib.Path
    kind: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    config: Mapping | None = None
    preprocessor: Mapping | None = None


def open_checkpoint(path):
    """Opens a file of weights, or a folder with `config.json` and `model.safetensors`; reads names and shapes only.

    Args:
        path: `.npz`, `.safetensors`, `.weights.h5`, `.keras` or a folder.

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
        path = path / "model.safetensors"
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


def _read_npz(path):
    try:
        archive = zipfile.ZipFile(path)
        entries = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise ValueError(f"{str(path)!r} must hold only .npy arrays; got a member {member.filename!r}")
            entries[name] = _npy_entry(path, archive, member, name)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{str(path)!r} must be an .npz file ({error}); it starts with {_head(path)}") from error
    return Checkpoint(path, "npz", entries, _parse_comment(archive.comment))


def _npy_entry(path, archive, member, name):
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = header[version](file)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{str(path)!r}: member {name!r} is no .npy array: {error}") from error
        size = file.tell() + math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(f"{str(path)!r}: array {name!r} is a pickled object, which is never loaded; expected numbers")
    if size != member.file_size:
        raise ValueError(
            f"{str(path)!r}: array {name!r} of shape {shape} needs {size} bytes; the file holds {member.file_size}"
        )

    def read():
        try:
            with archive.open(member) as file:
                return _as_float32(np.lib.format.read_array(file, allow_pickle=False), name)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise ValueError(f"{str(path)!r}: array {name!r} is damaged: {error}") from error

    return Entry(name, tuple(shape), read)


def _parse_comment(comment):
    # save.py writes its metadata there: every other reader of .npz passes over the comment of the archive.
    try:
        values = json.loads(comment.decode())
        return {str(key): str(value) for key, value in values.items()}
    except (ValueError, AttributeError):
        return {}


def _read_safetensors(path):
    try:
        file = safetensors.safe_open(path, framework="numpy")
        names, metadata = list(file.keys()), dict(file.metadata() or {})
        entries = {name: _safetensors_entry(file, name) for name in names}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} must be a .safetensors file ({error}); it starts with {_head(path)}") from error
    config, preprocessor = (_read_json(path.parent / name) for name in ("config.json", "preprocessor_config.json"))
    return Checkpoint(path, "safetensors", entries, metadata, config, preprocessor)


def _safetensors_entry(file, name):
    return Entry(name, tuple(file.get_slice(name).get_shape()), lambda: _as_float32(file.get_tensor(name), name))


def _read_json(path):
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ValueError(f"{str(path)!r} must not exceed {_MAX_CONFIG_BYTES} bytes; got {path.stat().st_size}")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{str(path)!r} must be JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{str(path)!r} must hold a JSON object; got {type(values).__name__}")
    return values


def _read_weights_h5(path):
    return Checkpoint(path, "h5", _h5_entries(path, path), {})


def _read_keras(path):
    try:
        with zipfile.ZipFile(path) as archive:
            weights = archive.getinfo("model.weights.h5")
            if weights.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{str(path)!r}: model.weights.h5 must be stored uncompressed, as Keras writes it")
            if archive.getinfo("config.json").file_size > _MAX_CONFIG_BYTES:
                raise ValueError(f"{str(path)!r}: config.json must not exceed {_MAX_CONFIG_BYTES} bytes")
            config = json.loads(archive.read("config.json"))
            return Checkpoint(path, "h5", _h5_entries(path, io.BytesIO(archive.read(weights))), {}, config)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{str(path)!r} must be a .keras file ({error}); it starts with {_head(path)}") from error


def _h5_entries(path, source):
    try:
        file = h5py.File(source, "r")
    except OSError as error:
        raise ValueError(f"{str(path)!r} must be an HDF5 file ({error}); it starts with {_head(path)}") from error
    if "layers" not in file:
        raise ValueError(f"{str(path)!r} must be a file of Keras weights with a group 'layers'; got {sorted(file)}")
    entries = {}
    _walk(file["layers"], (), entries)
    return entries


def _walk(group, names, entries):
    """Collects `layer/sublayer/0` and so on: the groups are named after classes, their `vars` after layers."""
    for child in group.values():
        if not isinstance(child, h5py.Group) or "vars" not in child:
            continue
        variables = child["vars"]
        path = (*names, str(variables.attrs.get("name", child.name.rsplit("/", 1)[-1])))
        for key, dataset in variables.items():
            if isinstance(dataset, h5py.Dataset):
                name = "/".join((*path, key))
                entries[name] = Entry(name, tuple(dataset.shape), functools.partial(_read_dataset, dataset, name))
        _walk(child, path, entries)


def _read_dataset(dataset, name):
    return _as_float32(dataset[()], name)


def _as_float32(array, name):
    """bfloat16, also where np.save stored it as 2-byte void, and the other floating types as float32."""
    if array.dtype == np.dtype("V2"):
        return (array.view("<u2").astype("<u4") << 16).view("<f4")
    if array.dtype.kind == "V":
        raise ValueError(f"array {name!r} must hold numbers; got dtype {array.dtype}")
    is_floating = np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"
    return array.astype("float32", copy=False) if is_floating else array


def _head(path):
    with open(path, "rb") as file:
        return repr(file.read(16))


_READERS = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".weights.h5": _read_weights_h5,
    ".keras": _read_keras,
}
