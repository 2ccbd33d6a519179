"""Reader of .npz archives: every member is checked against its own header, and none is unpickled."""

import functools
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

DEFLATE_LIMIT = 1032  # maximum compression ratio of zlib
_LOCAL_HEADER = 30  # bytes before a member's name
CHUNK = 2**19  # bytes; a chunk stays in the processor's cache while it is read, checked and copied

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# NumPy evaluates the header as a Python literal and passes on most of the resulting errors.
_BAD_HEADER = (ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


def read_npz(path):
    """Return the `Checkpoint` of an `.npz` file; see `readers.open_checkpoint`."""
    entries = {}
    with damage.explained(f"{str(path)!r} must be a whole .npz file", path):
        archive = zipfile.ZipFile(path)
        try:
            headers = [(member, check_member(archive, member)) for member in members(archive)]
        except ValueError as error:
            raise ValueError(f"{str(path)!r}: {error}") from error
        for member, header in headers:
            name = member.filename.removesuffix(".npy")
            if name in entries:
                raise ValueError(f"{str(path)!r} must hold every array once; got {name!r} twice")
            array = _Member(path, archive, member, header)
            entries[name] = Entry(name, header.shape, header.dtype.name, array.read, array.check)
    return Checkpoint(path, "npz", entries, _parse_comment(archive.comment))


def members(archive):
    """Return the members of an archive.

    Raises:
        ValueError: if a member lies outside of the file, overlaps the next one, or claims more data than it can hold.
            Such archives are made to waste time and memory.
    """
    found = sorted(archive.infolist(), key=lambda member: member.header_offset)
    ends = [*(member.header_offset for member in found[1:]), os.stat(archive.filename).st_size]
    for member, end in zip(found, ends, strict=False):
        room = end - member.header_offset - _LOCAL_HEADER
        most = member.compress_size * (1 if member.compress_type == zipfile.ZIP_STORED else DEFLATE_LIMIT)
        if member.compress_size > room or member.file_size > most:
            raise ValueError(
                f"{member.filename!r} must lie in the archive by itself; it claims {member.compress_size} bytes of "
                f"{max(room, 0)}, for {member.file_size}"
            )
    return archive.infolist()


class Header(typing.NamedTuple):
    """The contents of the header, the first `length` bytes of a `.npy` array."""

    shape: tuple
    is_fortran: bool
    dtype: np.dtype
    length: int


def check_member(archive, member):
    """Return the `Header` of a member.

    Raises:
        ValueError: unless the member is a `.npy` array of plain values with the length that its header states.
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


class _Member:
    """The array of one member, with `check` and `read` for its `Entry`.

    The header is not read again: NumPy parses it as Python, which fails in CPython 3.11 when two threads do it at once
    ("AST constructor recursion depth mismatch"), and read_ahead.py reads in threads.
    """

    def __init__(self, path, archive, member, header):
        self.name = member.filename.removesuffix(".npy")
        self._path, self._archive, self._member, self._header = path, archive, member, header
        self._is_stored = member.compress_type == zipfile.ZIP_STORED
        self._checked = None  # the state of the file when its checksum was compared

    def check(self):
        """Compare the checksum without keeping the array."""
        with self._explained():
            as_float32(np.empty(0, self._header.dtype), self.name)
            chunk = memoryview(bytearray(CHUNK))
            if self._is_stored:
                self._read_stored(lambda done: chunk)
            else:
                self._read_deflated(lambda piece, done: None)

    def read(self):
        """Read the array as `np.load` does, with its checksum, into memory that TensorFlow can use without a copy."""
        header = self._header
        with self._explained():
            array = aligned_empty(header.shape[::-1] if header.is_fortran else header.shape, header.dtype)
            target = memoryview(array.reshape(-1).view("u1"))
            if self._is_stored:
                self._read_stored(lambda done: target[done:])
            else:
                self._read_deflated(functools.partial(_put, target))
            return as_float32(array.transpose() if header.is_fortran else array, self.name)

    def _explained(self):
        return damage.explained(f"{str(self._path)!r}: array {self.name!r} is damaged", self._path)

    def _read_stored(self, place):
        # Read directly into the array (zipfile makes two copies), in two long calls that release Python's lock for
        # the other threads of read_ahead.py: 0.39 s instead of 0.50 s for a ViT-B/16.
        member, left = self._member, self._member.file_size - self._header.length
        with open(self._archive.filename, "rb", buffering=0) as file:
            state = os.fstat(file.fileno())
            state = state.st_ino, state.st_size, state.st_mtime_ns
            file.seek(member.header_offset + 26)  # lengths of name and extra field, the end of the 30 bytes
            file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
            checksum, done = zlib.crc32(file.read(self._header.length)), 0
            while done < left and (size := file.readinto(piece := place(done)[: left - done])):
                if self._checked != state:
                    checksum = zlib.crc32(piece[:size], checksum)
                done += size
        if done != left:
            raise EOFError(f"the file ends before {member.filename!r} does")
        if self._checked != state and checksum != member.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
        self._checked = state

    def _read_deflated(self, put):
        done = 0
        with self._archive.open(self._member) as file:
            file.read(self._header.length)
            while piece := file.read(CHUNK):  # zipfile compares the checksum at the end
                put(piece, done)
                done += len(piece)
        if done != self._member.file_size - self._header.length:
            raise EOFError(f"{self._member.file_size - self._header.length} bytes are expected; got {done}")


def _put(target, piece, done):
    target[done : done + len(piece)] = piece


def _parse_comment(comment):
    # save.py stores its metadata in the archive's comment, which other .npz readers ignore.
    try:
        values = json.loads(comment.decode())
        return {str(key): str(value) for key, value in values.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}
