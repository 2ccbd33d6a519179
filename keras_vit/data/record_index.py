"""Where the records of TFRecord files begin, read from their headers: random access, and damage found early.

A record is the length of its data (uint64, little-endian), the masked CRC-32C of these eight bytes (uint32), the data,
and the masked CRC-32C of the data (https://www.tensorflow.org/tutorials/load_data/tfrecord).
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
    """Whole records of several files, in their order.

    Attributes:
        paths: the files.
        files: int64 (records,), which of `paths` each lies in.
        numbers: int64 (records,), its number in its file, from 0.
        offsets: int64 (records,), where it begins, in bytes.
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
        """What messages call a record."""
        return f"{self.paths[self.files[position]]}, record {self.numbers[position]}"

    def reader(self):
        """Function from a position, an int64 scalar tensor, to the record's data, a scalar string tensor.

        Run on a damaged record (both checksums are checked), it raises `tf.errors.DataLossError`.
        """
        with tf.device("CPU"):
            paths, files = tf.constant(self.paths, tf.string), tf.constant(self.files)
            places = tf.constant(np.stack([self.offsets, self.lengths], axis=-1))
        return lambda n: _read_record(paths[files[n]], *tf.unstack(places[n]))


def index_records(paths, parts=None):
    """Reads the headers of files, 12 bytes for each record; the data are not read.

    A local file is read at these places alone. Of a remote one (such as `gs://`) most is transferred.

    Args:
        paths: files in their order.
        parts: for each, the slice of its records that is wanted; None takes all.

    Returns:
        `Records`. A record that is cut short is left out, and where the checksum of a header is wrong all that follow
        in its file, as nothing tells where they begin; the log `keras_vit.data` names the place.
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
    """Offsets and lengths of the whole records of one file, and what is wrong with the rest of it, or None."""
    status = tf.io.gfile.stat(path)
    if status.is_directory:
        raise ValueError(f"pattern must name TFRecord files; {path} is a folder: name its files, such as '{path}/*'")
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
        kind = "its header is damaged" if len(wrong) else "it is cut short"
        damage = f"{path}, record {whole}: {kind}, at byte {begin:,} of {size:,}"
    return offsets[:whole], fields["length"][:whole].astype(np.int64), damage


def _open(path):
    # GFile would fill a large buffer at each place of a local file.
    return open(path, "rb", buffering=0) if os.path.exists(path) else tf.io.gfile.GFile(path, "rb")


def _read_record(path, offset, length):
    options = {"output_types": [tf.string], "output_shapes": [()]}
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=length + _HEADER + _FOOTER, byte_offsets=[offset]
    )
    first = tf.raw_ops.TakeDataset(input_dataset=records, count=tf.constant(1, tf.int64), **options)
    return tf.raw_ops.DatasetToSingleElement(dataset=first, **options)[0]


def _masked_crc32c(lengths):
    """Checksums (uint32) of integers as eight little-endian bytes, masked as in TFRecord files."""
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
