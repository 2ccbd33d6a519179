"""Index of TFRecord files, read from the record headers: for random access and early detection of damage.

A record consists of the length of its data (uint64, little-endian), the masked CRC-32C of these eight bytes (uint32),
the data, and the masked CRC-32C of the data (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

import dataclasses
import logging
import os
import struct

import numpy as np
import tensorflow as tf

_LOG = logging.getLogger("keras_vit.data")
_HEADER, _FOOTER = 12, 4  # bytes
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed


@dataclasses.dataclass(frozen=True)
class Records:
    """The complete records of several files, in order.

    Attributes:
        paths: the files.
        files: int64 (records,), index of the file in `paths`.
        numbers: int64 (records,), number of the record in its file, from 0.
        offsets: int64 (records,), first byte of the record.
        lengths: int64 (records,), bytes of its data.
    """

    paths: tuple
    files: np.ndarray
    numbers: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    @property
    def size(self):
        """Number of records."""
        return len(self.files)

    def describe(self, position):
        """Return the name of a record in messages."""
        return f"{self.paths[self.files[position]]}, record {self.numbers[position]}"

    def reader(self):
        """Return the function from a position (int64 scalar tensor) to the record's data (scalar string tensor).

        It verifies both checksums and raises `tf.errors.DataLossError` on a damaged record.
        """
        with tf.device("CPU"):
            paths, files = tf.constant(self.paths, tf.string), tf.constant(self.files)
            places = tf.constant(np.stack([self.offsets, self.lengths], axis=-1))
        return lambda n: _read_record(paths[files[n]], *tf.unstack(places[n]))


def index_records(paths, parts=None):
    """Read the headers of files, 12 bytes per record, without the data.

    In a local file only these bytes are read. Most of a remote file (such as `gs://`) is transferred.

    Args:
        paths: files in order.
        parts: for each file, the slice of records to index; None indexes all.

    Returns:
        `Records`. A truncated record is left out. If the checksum of a header is wrong, this record and all later ones
        in its file are left out, because their positions are unknown. The log `keras_vit.data` names the record.
    """
    parts = [slice(None)] * len(paths) if parts is None else parts
    found = [_index_file(path) for path in paths]
    for _, _, damage in found:
        if damage:
            _LOG.warning("Records left out from here to the end of the file: %s", damage)
    numbers = [np.arange(len(offsets))[part] for (offsets, _, _), part in zip(found, parts, strict=True)]
    return Records(
        tuple(paths),
        np.repeat(np.arange(len(paths)), [len(taken) for taken in numbers]),
        np.concatenate(numbers),
        np.concatenate([offsets[part] for (offsets, _, _), part in zip(found, parts, strict=True)]),
        np.concatenate([lengths[part] for (_, lengths, _), part in zip(found, parts, strict=True)]),
    )


def _index_file(path):
    """Return offsets and lengths of the complete records of a file, and what is wrong with the rest, or None."""
    status = tf.io.gfile.stat(path)
    if status.is_directory:
        raise ValueError(f"pattern must match TFRecord files; {path} is a folder: give its files, such as '{path}/*'")
    size = status.length
    offsets, headers, end = [], [], 0
    with _open(path) as file:
        while end + _HEADER <= size:
            file.seek(end)
            headers.append(file.read(_HEADER))
            offsets.append(end)
            end += _HEADER + struct.unpack_from("<Q", headers[-1])[0] + _FOOTER
    offsets = np.array(offsets, np.int64)
    fields = np.frombuffer(b"".join(headers), np.dtype([("length", "<u8"), ("checksum", "<u4")]))
    wrong = np.flatnonzero(_masked_crc32c(fields["length"]) != fields["checksum"])
    whole = wrong[0] if len(wrong) else len(offsets) - (end > size)
    damage = None
    if len(wrong) or end != size:
        begin = offsets[whole] if whole < len(offsets) else end
        kind = "its header is damaged" if len(wrong) else "it is truncated"
        damage = f"{path}, record {whole}: {kind}, at byte {begin:,} of {size:,}"
    return offsets[:whole], fields["length"][:whole].astype(np.int64), damage


def _open(path):
    # GFile would read a large buffer at each position of a local file.
    return open(path, "rb", buffering=0) if os.path.exists(path) else tf.io.gfile.GFile(path, "rb")


def _read_record(path, offset, length):
    options = {"output_types": [tf.string], "output_shapes": [()]}
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=length + _HEADER + _FOOTER, byte_offsets=[offset]
    )
    first = tf.raw_ops.TakeDataset(input_dataset=records, count=tf.constant(1, tf.int64), **options)
    return tf.raw_ops.DatasetToSingleElement(dataset=first, **options)[0]


def _masked_crc32c(lengths):
    """Return the checksums (uint32) of integers as eight little-endian bytes, masked as in TFRecord files."""
    checksums = np.full(len(lengths), 0xFFFFFFFF, np.uint32)
    for byte in lengths.astype("<u8").view(np.uint8).reshape(-1, 8).T:
        checksums = _TABLE[(checksums ^ byte) & 0xFF] ^ (checksums >> np.uint32(8))
    checksums = ~checksums
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + np.uint32(_MASK)


def _crc_table():
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ np.where(values & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return values


_TABLE = _crc_table()
