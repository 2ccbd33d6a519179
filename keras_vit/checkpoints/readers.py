"""Readers of weights files: .npz, .safetensors, .weights.h5 and .json, .keras and folders, lazy and without pickle."""

import contextlib
import errno
import functools
import itertools
import json
import os
import pathlib
import re
import traceback

import numpy as np
import safetensors

from keras_vit.checkpoints.entries import Checkpoint, Entry, as_float32
from keras_vit.checkpoints.hdf5 import read_keras, read_shard, read_weights_h5
from keras_vit.checkpoints.npz import read_npz
from keras_vit.checks import quoted, shortened
from keras_vit.files import Refused, check_regular, parse_json, read_table
from keras_vit.logs import LOGGER

INDEX = "model.safetensors.index.json"  # weights that are split over several files
# The first one, which transformers 5 writes for text and images, takes precedence if it has an `image_processor`.
PROCESSORS = PROCESSOR, IMAGE_PROCESSOR = ("processor_config.json", "preprocessor_config.json")
OPENCLIP = ("open_clip_model.safetensors", "open_clip_config.json")

_PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl")
_FLOAT8 = ("F8_E4M3", "F8_E5M2")
# dtype in .safetensors -> dtype of its view; `as_float32` takes V2 as bfloat16
_DTYPES = {"BOOL": "?", "BF16": "V2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8"}
_DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "UI" for size in (1, 2, 4, 8)}
_DTYPES |= dict.fromkeys(_FLOAT8, "u1")


def open_checkpoint(path):
    """Open a weights file, or a folder with `config.json` and `model.safetensors`; read names and shapes only.

    Args:
        path: `.npz`, `.safetensors`, `.weights.h5`, `.weights.json`, `.keras` or a folder, whose weights may be split,
            see `parts_of`.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: if the path does not exist.
        ValueError: if the file is of another kind, damaged or holds pickled objects; the message states the reason.
    """
    path = pathlib.Path(path).expanduser()
    if not os.path.exists(check_regular(path)):
        raise FileNotFoundError(f"weights must be an existing file or folder; got {quoted(str(path))}")
    if path.is_dir():
        files = [path / name for name in ("model.safetensors", INDEX, OPENCLIP[0]) if (path / name).is_file()]
        if not files:
            raise FileNotFoundError(f"a folder of weights must hold model.safetensors; {str(path)!r} does not")
        path = files[0]
    if path.name == INDEX:
        parts = {name: open_checkpoint(path.with_name(name)) for name in parts_of(path)}
        first, entries = next(iter(parts.values())), _mapped(path, parts)
        _check_scales(path, entries)
        return Checkpoint(path, first.kind, entries, first.metadata, first.config_json, first.processor)
    if path.suffix in _PICKLED:
        raise ValueError(
            f"weights must not be a pickle, which can run code when read; got {str(path)!r}. {_same_weights(path.name)}"
        )
    # the table of readers is at the end of this file
    suffix = next((suffix for suffix in _READERS if path.name.endswith(suffix)), None)
    if suffix is None:
        raise ValueError(f"weights must be one of {', '.join(_READERS)} or a folder; got {str(path)!r}")
    with explained(f"{str(path)!r} must be a whole {suffix} file", path):
        found = _READERS[suffix](path)
    entries = {name: _explained_entry(entry, path) for name, entry in found.entries.items()}
    config, processor = found.config_json, None
    if found.kind == "safetensors":
        _check_scales(path, entries)
        config = json_beside(path, OPENCLIP[1] if path.name == OPENCLIP[0] else "config.json")
        processor = json_beside(path, PROCESSOR)
        if processor is None or processor.get("image_processor") is None:
            processor = json_beside(path, IMAGE_PROCESSOR)
    return Checkpoint(path, found.kind, entries, found.metadata, config, processor)


def open_npz(path, wanted):
    """Return {name: `Entry`} of the arrays `wanted` that an `.npz` file contains, with the checks of weights files."""
    with explained(f"{str(path)!r} must be a whole .npz file", path):
        found = read_npz(path, wanted).entries
    return {name: _explained_entry(entry, path) for name, entry in found.items()}


@contextlib.contextmanager
def explained(expectation, path):
    """Convert the errors of damaged files to `ValueError("<expectation>: <reason>")`, but not errors of the disk.

    Args:
        expectation: what the file should be, in words.
        path: path of the file, whose first bytes are added to the errors of its library.
    """
    try:
        yield
    except Exception as error:  # numpy, zipfile, h5py and safetensors raise a dozen types for damaged files
        # EINVAL comes from a read at an offset outside of the file, so the file is damaged.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        # Close the file now: its reader's variables stay in a cycle with this generator in CPython 3.12 and later.
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, Refused):
            raise ValueError(f"{expectation}: {shortened(str(error))}") from error.__cause__
        with open(path, "rb") as file:
            start = file.read(16)
        raise ValueError(f"{expectation}: {shortened(str(error))} (the first bytes are {start!r})") from error


def _explained_entry(entry, path):
    """Return the entry with clear errors and float32 for its floating numbers."""

    def call(function):
        with explained(f"{str(path)!r}: array {quoted(entry.name)} is damaged", path):
            return function()

    check = None if entry.check is None else functools.partial(call, entry.check)
    return Entry(entry.name, entry.shape, entry.dtype, lambda: as_float32(call(entry.read), entry.name), check)


def _same_weights(name):
    """Return what a user can do who has the pickle of this name."""
    for row in read_table("checkpoints/pickles.tsv"):
        if match := re.fullmatch(row["file"], name):
            return f"The same weights are in safetensors at hf://{match.expand(row['address'])}"
    return "Convert it once with safetensors.torch.save_file"


def parts_of(index):
    """Return the names of the files that hold split weights, sorted; they are in the folder of the index.

    Args:
        index: path of a `model.safetensors.index.json`, whose `weight_map` maps array names to file names, or of a
            `.weights.json` of Keras, which maps groups to one or more `.weights.h5` files.

    Raises:
        ValueError: if it is not such an index, or lists anything but such files of its own folder.
    """
    return sorted(set(itertools.chain(*_weight_map(index).values())))


def _weight_map(index):
    """Return {array or group: list of the files that hold it}."""
    weight_map = json_beside(index, index.name).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Refused(f"{str(index)!r} must have a weight_map from arrays to files; got {quoted(weight_map)}")
    suffix, lists = (".safetensors", ()) if index.name == INDEX else (".weights.h5", list)
    found = {key: files if isinstance(files, lists) else [files] for key, files in weight_map.items()}
    for name in itertools.chain(*found.values()):
        is_name = isinstance(name, str) and name.endswith(suffix) and "/" not in name and "\\" not in name
        if not is_name or os.path.isdir(index.with_name(name)):
            raise Refused(f"weight_map of {str(index)!r} must name {suffix} files in its folder; got {quoted(name)}")
    return found


def _mapped(index, parts):
    """Return the entries of split weights: each array from the file that `weight_map` names.

    transformers 5 takes an array that several files hold from the last one in the order of their names.

    Args:
        index: see `parts_of`.
        parts: dict from the name of each file to its `Checkpoint`.

    Raises:
        ValueError: if a file does not hold an array that is mapped to it, or holds one that the map does not list.
    """
    weight_map, entries = _weight_map(index), {}
    for file, part in parts.items():
        for name, entry in part.entries.items():
            if name not in weight_map:
                raise Refused(f"weight_map of {str(index)!r} must list every array; {name!r} is in {file!r} alone")
            if file in weight_map[name]:
                entries[name] = entry
            else:
                LOGGER.warning(f"{name!r} in {file!r} is not read: weight_map names {weight_map[name][0]!r} for it")
    if missing := sorted(weight_map.keys() - entries.keys()):
        got = f"{weight_map[missing[0]][0]!r} has no {quoted(missing[0])}"
        raise Refused(f"weight_map of {str(index)!r} must name the files that hold the arrays; {got}")
    return entries


def _read_shards(path):
    """Return the `Checkpoint` of a `.weights.json` of Keras, whose arrays are in the files that it names."""
    weight_map, entries, known = _weight_map(path), {}, {}
    left = {(group, file) for group, files in weight_map.items() for file in files if group.startswith("/layers/")}
    for file in parts_of(path):
        for name, entry, group in read_shard(check_regular(path.with_name(file)), known):
            if file not in weight_map.get(group, ()) or name in entries:
                raise Refused(f"its weight_map must name the one file of every array; {file!r} also has {name!r}")
            entries[name] = entry
            left.discard((group, file))
    if left:
        raise Refused("its weight_map must name the files that hold the arrays; {1!r} has no {0}".format(*min(left)))
    return Checkpoint(path, "h5", entries, json_beside(path, path.name).get("metadata", {}))


def _read_safetensors(path):
    """Return the `Checkpoint`; its arrays are read-only views of the mapped file, where their dtype allows it."""
    with safetensors.safe_open(path, framework="numpy") as file:  # checks the header and every offset
        names, metadata, entries = list(file.keys()), dict(file.metadata() or {}), {}
    content = np.memmap(path, "u1", "r").view(np.ndarray)
    first = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:first].tobytes())
    for name in names:
        shape, dtype, (start, end) = (header[name][key] for key in ("shape", "dtype", "data_offsets"))
        array, check = None, None
        if dtype in _DTYPES:
            array, check = content[first + start : first + end].view(_DTYPES[dtype]).reshape(shape), lambda: None
        entries[name] = Entry(name, tuple(shape), dtype, functools.partial(_values, array, name, dtype), check)
    return Checkpoint(path, "safetensors", entries, metadata)


def _values(array, name, dtype):
    if array is None:
        raise Refused(f"array {name!r} must hold numbers that NumPy has; got dtype {dtype}")
    return from_float8(array, dtype) if dtype in _FLOAT8 else array


def from_float8(codes, dtype):
    """Return the values of float8 numbers as float32.

    Args:
        codes: array of bytes, one per number.
        dtype: `F8_E4M3` (finite, as `ml_dtypes.float8_e4m3fn`) or `F8_E5M2`, arXiv 2209.05433.
    """
    codes = codes.astype("<u2")
    if dtype == "F8_E5M2":
        return (codes << 8).view("<f2").astype("float32")  # the upper half of a float16
    values = ((codes & 0x80) << 8 | (codes & 0x7F) << 7).view("<f2").astype("float32") * 2**8  # biases 15 and 7
    return np.where(codes & 0x7F == 0x7F, np.float32(np.nan), values)


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
                f"{str(path)!r} must hold unscaled values; {name!r} is {entries[name].dtype} and has the scale "
                f"{min(found)!r}, which is not applied (convert it to float32 with the library that wrote it)"
            )


def json_beside(path, name):
    """Return the dict in a JSON file in the folder of another file, None if there is none.

    Args:
        path: `pathlib.Path` of the other file.
        name: name of the JSON file.
    """
    path = check_regular(path.with_name(name))
    return parse_json(repr(str(path)), path.stat().st_size, path.read_bytes) if path.is_file() else None


_READERS = {
    ".npz": read_npz,
    ".safetensors": _read_safetensors,
    ".weights.h5": read_weights_h5,
    ".weights.json": _read_shards,
    ".keras": read_keras,
}
