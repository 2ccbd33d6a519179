"""Reader of .npz archives: every member is checked against its own header, and none is unpickled."""

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

from keras_vit.checkpoints.entries import DEFLATE_LIMIT, Checkpoint, Entry, as_float32
from keras_vit.compat.initial_values import aligned_zeros
from keras_vit.files import Refused

# NumPy evaluates a header as a Python literal and passes on most of the resulting errors.
_BAD_HEADER = (ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)
_LOCAL_HEADER = 30  # bytes before a member's name
_CHUNK = 2**19  # bytes; a chunk stays in the processor's cache while it is read, checked and copied

_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path, wanted=None):
    """Return the `Checkpoint` of an `.npz` file with the arrays `wanted` (None: all); see `readers.open_checkpoint`."""
    archive, entries = zipfile.ZipFile(path), {}
    for member in _members(archive):
        name = member.filename.removesuffix(".npy")
        if wanted is not None and name not in wanted:
            continue
        if name in entries:
            raise Refused(f"it must hold every array once; got {name!r} twice")
        header = _check_member(archive, member)
        array = _Member(archive, member, header)
        entries[name] = Entry(name, header.shape, header.dtype.name, array.read, array.check)
    return Checkpoint(path, "npz", entries, _parse_comment(archive.comment))


def _members(archive):
    """Return the members of an archive.

    Raise `Refused` if one lies outside of the file, overlaps the next one, or claims more data than it can hold. Such
    archives are made to waste time and memory.
    """
    found = sorted(archive.infolist(), key=lambda member: member.header_offset)
    ends = [*(member.header_offset for member in found[1:]), os.stat(archive.filename).st_size]
    for member, end in zip(found, ends, strict=False):
        room = end - member.header_offset - _LOCAL_HEADER
        most = member.compress_size * (1 if member.compress_type == zipfile.ZIP_STORED else DEFLATE_LIMIT)
        if member.compress_size > room or member.file_size > most:
            raise Refused(
                f"{member.filename!r} must not overlap others or exceed the archive; it claims {member.compress_size} "
                f"bytes, which hold {member.file_size} bytes of data, but has room for {max(room, 0)} bytes"
            )
    return archive.infolist()


class _Header(typing.NamedTuple):
    """The contents of the header, the first `length` bytes of a `.npy` array."""

    shape: tuple
    is_fortran: bool
    dtype: np.dtype
    length: int


def _check_member(archive, member):
    """Return a member's `_Header`; raise `Refused` unless it is a whole `.npy` array of plain values."""
    name = member.filename
    if not name.endswith(".npy"):
        raise Refused(f"every member must be a .npy array; got {name!r}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"{name!r} must be stored or deflated; got compression {member.compress_type}")
    with archive.open(member) as file:
        try:
            header = _Header(*_HEADER_READERS[np.lib.format.read_magic(file)](file), length=file.tell())
        except _BAD_HEADER as error:
            raise Refused(f"{name!r} must be a .npy array of version 1.0 or 2.0; {error}") from error
    size = member.file_size - header.length
    if header.dtype.hasobject:
        raise Refused(f"{name!r} must hold numbers; got Python objects, which are never unpickled")
    if min(header.shape, default=0) < 0 or size != math.prod(header.shape) * header.dtype.itemsize:
        raise Refused(f"{name!r} must hold {header.dtype} of shape {header.shape}; got {size} bytes of data")
    return header


class _Member:
    """The array of one member; its `Entry` uses `check` and `read`.

    load.py reads in threads. Therefore the header is not read again: NumPy parses it as Python, which fails in CPython
    3.11 when two threads do it at once ("AST constructor recursion depth mismatch"). Each call opens the file itself:
    `ZipFile.open` moves the one position of its file, from which another thread may read in CPython 3.12 and 3.13.
    """

    def __init__(self, archive, member, header):
        self._archive, self._member, self._header = archive, member, header
        self._checked = None  # the state of the file when its checksum was compared

    def check(self):
        """Compare the checksum without keeping the array."""
        as_float32(np.empty(0, self._header.dtype), self._member.filename.removesuffix(".npy"))
        chunk = memoryview(bytearray(_CHUNK))
        self._fill(lambda done: chunk)

    def read(self):
        """Read the array as `np.load` does, with its checksum, into memory that TensorFlow can use without a copy."""
        header = self._header
        array = aligned_zeros(header.shape[::-1] if header.is_fortran else header.shape, header.dtype)
        target = memoryview(array.reshape(-1).view("u1"))
        self._fill(lambda done: target[done:])
        return array.transpose() if header.is_fortran else array

    def _fill(self, place):
        """Read the values into the buffers `place(position)`, and compare the checksum."""
        member, left = self._member, self._member.file_size - self._header.length
        with contextlib.ExitStack() as files:
            source = files.enter_context(open(self._archive.filename, "rb", buffering=0))
            state = os.fstat(source.fileno())
            state = state.st_ino, state.st_size, state.st_mtime_ns
            source.seek(member.header_offset + 26)  # lengths of name and extra field, the end of the 30 bytes
            source.seek(sum(struct.unpack("<HH", source.read(4))), os.SEEK_CUR)
            # Read stored values directly into the array (zipfile makes two copies), in two long calls that release
            # Python's lock for the other threads of load.py: 0.39 s instead of 0.50 s for a ViT-B/16.
            most = left
            if member.compress_type != zipfile.ZIP_STORED:
                source, most = files.enter_context(zipfile.ZipExtFile(source, "r", member)), _CHUNK
            checksum, done = zlib.crc32(source.read(self._header.length)), 0
            while done < left and (size := source.readinto(piece := place(done)[: min(left - done, most)])):
                if self._checked != state:
                    checksum = zlib.crc32(piece[:size], checksum)
                done += size
        if done != left:
            raise EOFError(f"the file ends before {member.filename!r} does")
        if self._checked != state and checksum != member.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
        self._checked = state


def _parse_comment(comment):
    # save.py stores its metadata in the archive's comment, which other .npz readers ignore.
    try:
        return {str(key): str(value) for key, value in json.loads(comment.decode()).items()}
    except (ValueError, AttributeError, RecursionError):
        return {}
