"""from_tfrecord: images in sharded TFRecord files, with random access."""

import os
from collections.abc import Sequence

import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_vit import checks
from keras_vit.data.record_index import index_records
from keras_vit.data.sources import ImageSource, check_class_names, from_lookup
from keras_vit.typing import PathLike


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
            order. Paths are those of TensorFlow (also `gs://`). The files must not be compressed.
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
        ValueError: if no record is complete or readable, the first readable one lacks these features, or `label_offset`
            is above all labels.
    """
    checks.check_integer("label_offset", label_offset, minimum=0)
    class_names = None if class_names is None else check_class_names(class_names)
    files = _find_files(pattern)
    records = index_records(files)
    if not records.size:
        raise ValueError(
            f"pattern must match uncompressed TFRecord files with complete records; got {_shortened(files)}"
        )
    features = {image_key: tf.io.FixedLenFeature((), tf.string), label_key: tf.io.FixedLenFeature((), tf.int64)}
    read = records.reader()
    _check_first(records, read, image_key, label_key)

    def lookup(n):
        example = tf.io.parse_single_example(read(n), features)
        return {"image": example[image_key], "label": tf.cast(example[label_key] - label_offset, tf.int32)}

    if class_names is None:
        highest = _highest_label(lookup, records.size)
        if highest < 0:
            raise ValueError(
                "label_offset must be the label of the first class in the files; "
                f"got label_offset={label_offset}, and the highest label is {highest + label_offset}"
            )
        class_names = [str(n) for n in range(highest + 1)]
    return from_lookup(lookup, class_names, records.size, describe=records.describe)


def _find_files(pattern):
    if isinstance(pattern, (str, os.PathLike)):
        files = sorted(tf.io.gfile.glob(os.fspath(pattern)))
    else:
        files = [os.fspath(file) for file in pattern]
    absent = [file for file in files if not tf.io.gfile.exists(file)]
    if not files or absent:
        raise FileNotFoundError(f"pattern must match TFRecord files; there is no {absent[0] if absent else pattern}")
    return files


def _check_first(records, read, image_key, label_key):
    """Raise if the first readable record has no image or no label under these names."""
    readable = tf.data.Dataset.range(records.size).map(read).ignore_errors().take(1)
    first = next(readable.as_numpy_iterator(), None)
    if first is None:
        raise ValueError(f"pattern must match files with readable records; all {records.size} are damaged")
    features = _features(first)
    for argument, key, kind in (("image_key", image_key, "bytes_list"), ("label_key", label_key, "int64_list")):
        if features.get(key) != (kind, 1):
            raise ValueError(
                f"{argument} must name a feature with one value of {kind}; got {argument}={key!r}, and the records "
                f"have {', '.join(f'{name} ({kind}, {count})' for name, (kind, count) in sorted(features.items()))}"
            )


def _features(data):
    """Return {name: (kind, number of values)} of a serialised `tf.train.Example`."""
    try:
        features = tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise ValueError("pattern must match files of tf.train.Example; the first record is not one") from error
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    return {name: (kind, len(getattr(features[name], kind).value) if kind else 0) for name, kind in kinds.items()}


def _highest_label(lookup, size):
    labels = tf.data.Dataset.range(size).map(lambda n: lookup(n)["label"], num_parallel_calls=tf.data.AUTOTUNE)
    return max(labels.ignore_errors().as_numpy_iterator())


def _shortened(files):
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
