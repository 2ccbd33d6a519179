"""Archives of arrays (.npz): every member is checked against its own header and none is ever unpickled."""

import contextlib
import json
import math
import os
import struct
import tokenize
import typing
import zipfile
import zlib

import numpy as np

from keras_vit.checkpoints import damage
from keras_vit.checkpoints.entries import Checkpoint, Entry, as_float32
from keras_vit.compat.initial_values import aligned_empty

CHUNK = 2**19  # bytes; read, checksum and copy of one chunk stay in the processor's cache

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# NumPy evaluates the header as a Python literal, and passes on most of what that raises.
_BAD_HEADER = (ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


def read_npz(path):
    """Returns the `Checkpoint` of an `.npz` file; see `readers.open_checkpoint`."""
    entries = {}
    with damage.explained(f"{str(path)!r} must be a whole .npz file", path):
        archive = zipfile.ZipFile(path)
        for member in archive.infolist():
            try:
                header = check_member(archive, member)
            except ValueError as error:
                raise ValueError(f"{str(path)!r}: {error}") from error
            name = member.filename.removesuffix(".npy")
            if name in entries:
                raise ValueError(f"{str(path)!r} must hold every array once; got {name!r} twice")
            readers = (_reader(path, archive, member, header, read) for read in (_read_array, _check_array))
            entries[name] = Entry(name, header.shape, *readers)
    return Checkpoint(path, "npz", entries, _parse_comment(archive.comment))


class Header(typing.NamedTuple):
    """What the first `length` bytes of a `.npy` array state."""

    shape: tuple
    is_fortran: bool
    dtype: np.dtype
    length: int


def check_member(archive, member):
    """Returns the `Header` of an archive's member.

    Raises:
        ValueError: unless it is a `.npy` array of plain values as long as its header says.
    """
    name = member.filename
    if not name.endswith(".npy"):
        raise ValueError(f"every member must be a .npy array; got {name!r}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name!r} must be stored or deflated; got compression {member.compress_type}")
    with archive.open(member) as file:
        header = Header(*_read_header(file, name), length=file.tell())
    size = member.file_size - header.length
    if header.dtype.hasobject:
        raise ValueError(f"{name!r} must hold numbers; got Python objects, which are never unpickled")
    if min(header.shape, default=0) < 0 or size != math.prod(header.shape) * header.dtype.itemsize:
        raise ValueError(f"{name!r} must hold {header.dtype} of shape {header.shape}; got {size} bytes of data")
    return header


def _read_header(file, name):
    try:
        return _HEADER_READERS[np.lib.format.read_magic(file)](file)
    except _BAD_HEADER as error:
        raise ValueError(f"{name!r} must be a .npy array of version 1.0 or 2.0; {error}") from error


def _reader(path, archive, member, header, read):
    name = member.filename.removesuffix(".npy")

    def explained():
        with damage.explained(f"{str(path)!r}: array {name!r} is damaged", path):
            return as_float32(read(archive, member, header), name)

    return explained


def _check_array(archive, member, header):
    """Compares the checksum of a member, of which it keeps no more than a chunk, and returns an empty array."""
    if member.compress_type == zipfile.ZIP_STORED:
        chunk, left, checksum = memoryview(bytearray(CHUNK)), member.file_size, 0
        with _opened(archive.filename, member) as file:
            while left and (size := file.readinto(chunk[:left])):
                checksum = zlib.crc32(chunk[:size], checksum)
                left -= size
        _check_checksum(member, checksum, is_whole=not left)
    else:
        with archive.open(member) as file:
            while file.read(CHUNK):  # to its end, where zipfile compares the checksum
                pass
    return np.empty(0, header.dtype)


def _read_array(archive, member, header):
    """Reads a member as `np.load` does, its checksum included, into memory that TensorFlow can take over.

    The header is not read again: NumPy parses it as Python, which CPython 3.11 cannot do in two threads at once
    ("AST constructor recursion depth mismatch"), and read_ahead.py reads in threads.
    """
    array = aligned_empty(header.shape[::-1] if header.is_fortran else header.shape, header.dtype)
    target = memoryview(array.reshape(-1).view("u1"))
    if member.compress_type == zipfile.ZIP_STORED:
        _read_stored(archive.filename, member, header.length, target)
    else:
        _read_deflated(archive, member, header.length, target)
    return array.transpose() if header.is_fortran else array


def _read_stored(path, member, header_length, target):
    # Straight to its place, where zipfile would make two copies, and in two long calls that leave Python's lock to
    # the other threads of read_ahead.py: 0.39 s instead of 0.50 s for a ViT-B/16.
    with _opened(path, member) as file:
        checksum, done = zlib.crc32(file.read(header_length)), 0
        while done < len(target) and (size := file.readinto(target[done:])):
            done += size
    _check_checksum(member, zlib.crc32(target, checksum), is_whole=done == len(target))


@contextlib.contextmanager
def _opened(path, member):
    """The archive's file, at the first byte of a stored member."""
    with open(path, "rb", buffering=0) as file:
        file.seek(member.header_offset + 26)  # the lengths of name and extra field, the last of 30 bytes
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        yield file


def _check_checksum(member, checksum, is_whole):
    if not is_whole:
        raise EOFError(f"the file ends before {member.filename!r} does")
    if checksum != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")


def _read_deflated(archive, member, header_length, target):
    done = 0
    with archive.open(member) as file:
        file.read(header_length)
        while chunk := file.read(CHUNK):  # to its end, where zipfile compares the checksum
            target[done : done + len(chunk)] = chunk
            done += len(chunk)
    if done != len(target):
        raise EOFError(f"{len(target)} bytes are expected; got {done}")


def _parse_comment(comment):
    # save.py writes its metadata there: every other reader of .npz passes over the comment of the archive.
    try:
        values = json.loads(comment.decode())
        return {str(key): str(value) for key, value in values.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}
