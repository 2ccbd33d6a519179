"""from_tfrecord: images in sharded TFRecord files, with random access.

The headers of all records are read first, so that damage is detected early.

A record consists of the length of its data (uint64, little-endian), the masked CRC-32C of these eight bytes (uint32),
the data, and the masked CRC-32C of the data (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

import glob
import logging
import os
import struct
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_vit import checks
from keras_vit.data.sources import ImageSource, as_label, check_class_names, from_lookup, numbered_names
from keras_vit.files import check_regular
from keras_vit.typing import PathLike

_LOG = logging.getLogger("keras_vit.data")
_HEADER, _FOOTER = 12, 4  # bytes
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed


def from_tfrecord(
    pattern: PathLike | Sequence[PathLike],
    *,
    class_names: Sequence[str] | None = None,
    image_key: str = "image/encoded",
    label_key: str = "image/class/label",
    label_offset: int = 0,
) -> ImageSource:
    """Return the images of TFRecord files of `tf.train.Example`, such as ImageNet's.

    The headers of all records are read once, 12 bytes each. This makes exact shuffling and splitting possible, and
    detects damaged files: the log `keras_vit.data` names the first incomplete record, and this record and all later
    ones in its file are left out. The checksum of an image is verified when it is read.

    Args:
        pattern: pattern such as `"data/train-*-of-01024"`, whose files are sorted by name, or a sequence of files in
            order. TensorFlow reads them, so `gs://` paths work too. The files must not be compressed.
        class_names: one name per class. None reads all labels once (pass names for a large set) and names the classes
            "0", "1" and so on up to the highest label.
        image_key: feature of the encoded file, one string.
        label_key: feature of the label, one integer.
        label_offset: label of the first class in the files: 1 for the original ImageNet records, whose label 0 is
            "background".

    Returns:
        An `ImageSource` in the order of files and records. Messages name an image "PATH, record NUMBER" (from 0).

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if no record is complete or readable, the first readable one does not have these features,
            `label_offset` is above all labels, or a label is above a million without `class_names`.
    """
    checks.check_integer("label_offset", label_offset, minimum=0)
    class_names = None if class_names is None else check_class_names(class_names)
    files = _find_files(pattern)
    size, read, describe = index_records(files)
    if not size:
        raise ValueError(
            f"pattern must match whole, uncompressed TFRecord files; got {files[0]} and {len(files) - 1} more"
        )
    features = {image_key: tf.io.FixedLenFeature((), tf.string), label_key: tf.io.FixedLenFeature((), tf.int64)}
    _check_first(read, size, image_key, label_key)

    @tf.autograph.experimental.do_not_convert
    def lookup(n):
        example = tf.io.parse_single_example(read(n), features)
        return {"image": example[image_key], "label": as_label(example[label_key] - label_offset)}

    if class_names is None:
        labels = tf.data.Dataset.range(size).map(lambda n: lookup(n)["label"], num_parallel_calls=tf.data.AUTOTUNE)
        highest = max(labels.ignore_errors().as_numpy_iterator())
        if highest < 0:
            most = f"{highest + label_offset}, the highest label in the files"
            raise ValueError(f"label_offset must be at most {most}; got label_offset={label_offset}")
        class_names = numbered_names(highest)
    return from_lookup(lookup, class_names, size, describe=describe)


def _find_files(pattern):
    if isinstance(pattern, (str, os.PathLike)):
        prefix = pattern = os.fspath(pattern)
        while prefix and not os.path.exists(prefix):
            prefix = os.path.dirname(prefix)
        files = sorted(tf.io.gfile.glob(glob.escape(prefix) + pattern[len(prefix) :]))  # such as `run [v2]/*.tfrecord`
    else:
        files = [os.fspath(file) for file in pattern]
    absent = [file for file in files if not tf.io.gfile.exists(file)]
    if not files or absent:
        raise FileNotFoundError(f"pattern must match TFRecord files; there is no {absent[0] if absent else pattern}")
    return files


def _check_first(read, size, image_key, label_key):
    """Raise if the first readable record has no image or no label under these names."""
    first = next(tf.data.Dataset.range(size).map(read).ignore_errors().take(1).as_numpy_iterator(), None)
    if first is None:
        raise ValueError(f"pattern must match files with readable records; all {size} are damaged")
    try:
        features = tf.train.Example.FromString(first).features.feature
    except DecodeError as error:
        raise ValueError("pattern must match files of tf.train.Example; the first record is not one") from error
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    found = {name: (kind, len(getattr(features[name], kind).value) if kind else 0) for name, kind in kinds.items()}
    for argument, key, kind in (("image_key", image_key, "bytes_list"), ("label_key", label_key, "int64_list")):
        if found.get(key) != (kind, 1):
            raise ValueError(
                f"{argument} must name a feature with one value of {kind}; got {argument}={key!r}, and the records "
                f"have {', '.join(f'{name} ({kind}, {count})' for name, (kind, count) in sorted(found.items()))}"
            )


def index_records(paths, parts=None):
    """Read the headers of files, 12 bytes per record, without the data.

    In a local file only these bytes are read. Most of a remote file (such as `gs://`) is transferred. A truncated
    record is left out. If the checksum of a header is wrong, this record and all later ones in its file are left out,
    because their positions are unknown. The log `keras_vit.data` names the record.

    Args:
        paths: files in order.
        parts: for each file, the slice of records to index; None indexes all.

    Returns:
        `(size, read, describe)`: the number of complete records; the function from a position (int64 scalar tensor) to
        the record's data (scalar string tensor), which verifies both checksums and raises `tf.errors.DataLossError` on
        a damaged record; and the function from a position to the name of the record in messages.
    """
    parts = [slice(None)] * len(paths) if parts is None else parts
    found = [_index_file(path)[part] for path, part in zip(paths, parts, strict=True)]
    files, records = np.repeat(np.arange(len(paths)), list(map(len, found))), np.concatenate(found)
    with tf.device("CPU"):
        tensors = tf.constant(paths, tf.string), tf.constant(files), tf.constant(records)

    def read(n):
        path, (_, offset, length) = tensors[0][tensors[1][n]], tf.unstack(tensors[2][n])
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path], compression_type="", buffer_size=length + _HEADER + _FOOTER, byte_offsets=[offset]
        )
        spec = tf.TensorSpec((), tf.string)
        return tf.data.experimental.from_variant(records, spec).take(1).get_single_element()

    return len(files), read, lambda n: f"{paths[files[n]]}, record {records[n][0]}"


def _index_file(path):
    """Return the number, offset and length of the complete records of a file: int64 (records, 3). Warn about others."""
    status = tf.io.gfile.stat(check_regular(path))
    if status.is_directory:
        raise ValueError(f"pattern must match TFRecord files; {path} is a folder: give its files, such as '{path}/*'")
    size = status.length
    offsets, headers, end = [], [], 0
    # GFile would read a large buffer at each position of a local file.
    with open(path, "rb", buffering=0) if os.path.exists(path) else tf.io.gfile.GFile(path, "rb") as file:
        while end + _HEADER <= size:
            file.seek(end)
            headers.append(file.read(_HEADER))
            offsets.append(end)
            end += _HEADER + struct.unpack_from("<Q", headers[-1])[0] + _FOOTER
    offsets = np.array(offsets, np.int64)
    fields = np.frombuffer(b"".join(headers), np.dtype([("length", "<u8"), ("checksum", "<u4")]))
    wrong = np.flatnonzero(_masked_crc32c(fields["length"]) != fields["checksum"])
    whole = wrong[0] if len(wrong) else len(offsets) - (end > size)
    if len(wrong) or end != size:
        begin = offsets[whole] if whole < len(offsets) else end
        kind = "its header is damaged" if len(wrong) else "it is truncated"
        _LOG.warning(
            "Records left out from here to the end of the file: %s",
            f"{path}, record {whole}: {kind}, at byte {begin:,} of {size:,}",
        )
    return np.stack([np.arange(whole), offsets[:whole], fields["length"][:whole].astype(np.int64)], axis=-1)


def _masked_crc32c(lengths):
    """Return the checksums (uint32) of integers as eight little-endian bytes, masked as in TFRecord files."""
    checksums = np.full(len(lengths), 0xFFFFFFFF, np.uint32)
    for byte in lengths.astype("<u8").view(np.uint8).reshape(-1, 8).T:
        checksums = _TABLE[(checksums ^ byte) & 0xFF] ^ (checksums >> np.uint32(8))
    checksums = ~checksums
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + np.uint32(_MASK)


_TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _TABLE = (_TABLE >> np.uint32(1)) ^ np.where(_TABLE & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
