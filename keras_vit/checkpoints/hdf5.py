"""Readers of Keras files (.weights.h5, .keras) that never read outside of the file."""

import io
import math
import mmap
import zipfile

import h5py

from keras_vit.checkpoints.entries import DEFLATE_LIMIT, Checkpoint, Entry
from keras_vit.config.unseen import KEY
from keras_vit.files import Refused, parse_json

_CHUNK_SLACK = 16  # maximum size of a chunk relative to its array; h5py decompresses whole chunks
_SMALL_CHUNK = 2**20  # bytes
_HEAP = b"GCOL\1\0\0\0"  # start of a global heap collection: signature, version, reserved bytes


def read_weights_h5(path):
    """Return the `Checkpoint` of a `.weights.h5` file; see `readers.open_checkpoint`."""
    return _checkpoint(path, _checked(path))


def read_shard(path, known):
    """Yield (name, `Entry`, its group) of one of the `.weights.h5` files of a `.weights.json`.

    Args:
        path: path of the file.
        known: dict from groups of the earlier files to the names of their layers, which later files may omit; those of
            this file are added.
    """
    file = h5py.File(_checked(path), "r")
    for name, dataset in _walk(_child(file, "layers"), (), set(), known) if "layers" in file else ():
        yield name, _entry(name, dataset), dataset.parent.name


def _checked(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        _check_heap(content)
    return path


def read_keras(path):
    """Return the `Checkpoint` of a `.keras` file; see `readers.open_checkpoint`."""
    with zipfile.ZipFile(path) as archive:
        text, weights = (archive.getinfo(name) for name in ("config.json", "model.weights.h5"))
        for member in (text, weights):
            if member.compress_size > path.stat().st_size:  # zipfile would allocate this many bytes
                raise Refused(f"{member.filename} claims {member.compress_size} bytes, more than the file has")
        if weights.compress_type != zipfile.ZIP_STORED:
            raise Refused("model.weights.h5 must be stored uncompressed, as Keras writes it")
        config = parse_json("config.json", text.file_size, lambda: archive.read(text))
        content = archive.read(weights)
    _check_heap(content)
    return _checkpoint(path, io.BytesIO(content), config)


def _checkpoint(path, source, config=None):
    file = h5py.File(source, "r")
    metadata = {KEY: str(file.attrs[KEY])} if KEY in file.attrs else {}  # written by ImageModel.save_weights
    if "layers" not in file:
        raise Refused(f"it must have a group 'layers', as Keras writes it; got {sorted(file)}")
    entries = {name: _entry(name, dataset) for name, dataset in _walk(_child(file, "layers"), (), set(), {})}
    return Checkpoint(path, "h5", entries, metadata, config)


def _entry(name, dataset):
    return Entry(name, tuple(dataset.shape), dataset.dtype.name, lambda: dataset[()])


def _walk(group, names, seen, known, is_inner_model=False):
    """Yield pairs such as (`layer/sublayer/0`, dataset); groups are named by class, and `vars` has the layer's name.

    For the layers of an inner model, the group names are used, because their own names may be generated. See
    `read_shard` for `known`.
    """
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        raise Refused(f"it must hold every group once; {group.name!r} is linked twice")
    seen.add(address)
    for key in group:
        child = _child(group, key)
        if not isinstance(child, h5py.Group) or key == "vars":
            continue
        if "vars" not in child and child.name not in known:  # a list of layers
            yield from _walk(child, names, seen, known, is_inner_model=key == "layers")
            continue
        variables = _child(child, "vars") if "vars" in child else {}
        name = known.setdefault(child.name, str(getattr(variables, "attrs", {}).get("name", key)))
        path = (*names, key if is_inner_model else name)
        for number in variables:
            dataset = _child(variables, number)
            if isinstance(dataset, h5py.Dataset):
                _check_storage(dataset)
                yield "/".join((*path, number)), dataset
        yield from _walk(child, path, seen, known)


def _check_heap(content):
    """Refuse a damaged global heap, which stores layer names: libhdf5 1.14 could loop forever or read beyond it."""
    start = content.find(_HEAP)
    while start >= 0:
        end = start + int.from_bytes(content[start + 8 : start + 16], "little")
        place = start + 16
        while place + 16 <= min(end, len(content)):
            length = int.from_bytes(content[place + 8 : place + 16], "little")
            is_object = content[place : place + 2] != b"\0\0"  # otherwise the free space at the end
            step = 16 + -(-length // 8) * 8 if is_object else length
            if not 0 < step <= end - place:
                raise Refused("its global heap is damaged")
            place += step
        start = content.find(_HEAP, start + 1)


def _child(group, key):
    """Return one child of a group; reject soft links and links to other files, which HDF5 would follow silently."""
    if not isinstance(group.get(key, getlink=True), h5py.HardLink):
        raise Refused(f"it must hold its arrays itself; {key!r} in {group.name!r} is a link, which is not followed")
    return group[key]


def _check_storage(dataset):
    if dataset.external or dataset.is_virtual:
        raise Refused(f"it must hold its arrays itself; {dataset.name!r} lies in another file, which is not opened")
    if dataset.shape is None:
        raise Refused(f"it must hold arrays; {dataset.name!r} is empty")
    stored = dataset.id.get_storage_size() * (DEFLATE_LIMIT if dataset.chunks else 1)
    try:
        itemsize = dataset.dtype.itemsize
    except TypeError as error:  # such as HDF5 types that NumPy does not have
        raise Refused(f"it must hold numbers; array {dataset.name!r} is of another type: {error}") from error
    needed = math.prod(dataset.shape) * itemsize
    if dataset.chunks and math.prod(dataset.chunks) * itemsize > max(_CHUNK_SLACK * needed, _SMALL_CHUNK):
        raise Refused(
            f"its chunks must not be much larger than their arrays; {dataset.name!r} has chunks of {dataset.chunks}"
        )
    if needed > stored:
        raise Refused(f"it must be whole; {dataset.name!r} of shape {dataset.shape} needs {needed} bytes, not {stored}")
