"""from_tfrecord: order over shards, labels, names, damaged files and refusals."""

import logging

import numpy as np
import pytest
import tensorflow as tf
from image_sets import LEVELS, batches, encode, example, numbered, write_records

from keras_vit.data import eval_pipeline, from_tfrecord
from keras_vit.evaluation.labelled import SourceImages

SIZE = 7
LABELS = [3, 1, 2, 1, 3, 2, 1]
CONTENTS = [encode(image) for image in numbered(SIZE)]


@pytest.fixture
def files(tmp_path):
    return write_records(tmp_path, CONTENTS, LABELS, shards=3)


def elements(source):
    return [(e["image"], int(e["label"])) for e in source.dataset.as_numpy_iterator()]


def logged(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "keras_vit.data"]


def test_records_come_in_the_order_of_shards(files, caplog):
    source = from_tfrecord(str(files[0].parent / "train-*-of-00003"), class_names=["a", "b", "c"], label_offset=1)
    assert (source.size, source.class_names) == (7, ("a", "b", "c"))
    assert elements(source) == [(data, label - 1) for data, label in zip(CONTENTS, LABELS, strict=True)]
    assert [source.name_of(n) for n in (0, 2, 3)] == [
        f"{files[0]}, record 0",
        f"{files[0]}, record 2",
        f"{files[1]}, record 0",
    ]
    assert logged(caplog) == []


def test_an_existing_path_is_no_pattern(tmp_path):
    folder = tmp_path / "run [v2]" / "a*"
    folder.mkdir(parents=True)
    (tmp_path / "run v" / "ab").mkdir(parents=True)
    [file] = write_records(folder, CONTENTS[:1], LABELS[:1], shards=1)
    write_records(tmp_path / "run v" / "ab", CONTENTS[:1], LABELS[:1], shards=1)
    patterns = (file, folder / "train-*", tmp_path / "run [v2]" / "?[*]" / "train-*")
    assert [from_tfrecord(pattern).name_of(0) for pattern in patterns] == [f"{file}, record 0"] * 3
    with pytest.raises(FileNotFoundError, match="there is no .*validation"):
        from_tfrecord(folder / "validation-*")


def test_labels_outside_int32_are_no_class(tmp_path):
    """A cast would make 2**32 + 1 the class 1; one damaged label would make a name for each number below it."""
    files = write_records(tmp_path, [CONTENTS[0]] * 3, [2**32 + 1, -(2**32) + 1, 1], shards=1)
    source = from_tfrecord(files, class_names=["a", "b"])
    assert [label for _, label in elements(source)] == [2**31 - 1, -(2**31), 1]
    with pytest.raises(ValueError, match="labels of data must be .* range from -2147483648 to 2147483647"):
        print(SourceImages("data", source, None, 4).labels)
    with pytest.raises(ValueError, match="labels without class_names must be below 1,048,576"):
        from_tfrecord(files)


def test_records_are_looked_up_and_split(files):
    source = from_tfrecord(reversed(files))
    assert source.class_names == ("0", "1", "2", "3")
    expected = [CONTENTS[n] for n in (5, 6, 3, 4, 0, 1, 2)]
    assert [image for image, _ in elements(source)] == expected
    part = source.take([6, 2])
    assert [image for image, _ in elements(part)] == [expected[6], expected[2]]
    assert part.name_of(1) == f"{files[1]}, record 0"


def test_other_features(tmp_path):
    features = {
        "photo": tf.train.Feature(bytes_list=tf.train.BytesList(value=[CONTENTS[0]])),
        "class": tf.train.Feature(int64_list=tf.train.Int64List(value=[4])),
        "boxes": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.0])),
    }
    with tf.io.TFRecordWriter(str(tmp_path / "x")) as writer:
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    assert elements(from_tfrecord(tmp_path / "x", image_key="photo", label_key="class")) == [(CONTENTS[0], 4)]
    with pytest.raises(
        ValueError, match=r"image_key must .*'image/encoded', and the records have boxes \(float_list, 2\)"
    ):
        from_tfrecord(tmp_path / "x", label_key="class")
    with pytest.raises(
        ValueError, match="label_key must name a feature with one value of int64_list; got label_key='boxes'"
    ):
        from_tfrecord(tmp_path / "x", image_key="photo", label_key="boxes")


def _at(path, place, change):
    data = bytearray(path.read_bytes())
    data[place:] = change(data[place:])
    path.write_bytes(data)


def _flipped(data):
    return bytes([data[0] ^ 1]) + data[1:]


PLAIN = [b"image %d" % n for n in range(SIZE)]
RECORD = len(example(PLAIN[0], 1).SerializeToString()) + 16  # all are of this size
DAMAGE = {
    "last record cut": (2 * RECORD + 50, lambda data: b"", 2, "record 2: it is truncated"),
    "last header cut": (2 * RECORD + 5, lambda data: b"", 2, "record 2: it is truncated"),
    "last checksum cut": (3 * RECORD - 1, lambda data: b"", 2, "record 2: it is truncated"),
    "length changed": (RECORD, _flipped, 1, "record 1: its header is damaged"),
    "checksum of the length changed": (2 * RECORD + 8, _flipped, 2, "record 2: its header is damaged"),
    "more behind": (3 * RECORD, lambda data: b"more", 3, "record 3: it is truncated"),
    "zeros behind": (3 * RECORD, lambda data: bytes(64), 3, "record 3: its header is damaged"),
    "an impossible length": (RECORD, lambda data: b"\xff" * 99, 1, "record 1: its header is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_follows_damage_is_left_out_and_named(tmp_path, caplog, kind):
    place, change, whole, message = DAMAGE[kind]
    files = write_records(tmp_path, PLAIN, LABELS, shards=3)
    _at(files[0], place, change)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        source = from_tfrecord(files)
    expected = [n for n in range(SIZE) if n >= 3 or n < whole]
    assert [image for image, _ in elements(source)] == [PLAIN[n] for n in expected]
    (found,) = logged(caplog)
    assert f"{files[0]}, {message}, at byte {whole * RECORD:,} of {files[0].stat().st_size:,}" in found


@pytest.mark.slow
def test_damaged_data_are_found_when_they_are_read(files, caplog):
    _at(files[1], 60, _flipped)
    source = from_tfrecord(files)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        (found,) = batches(eval_pipeline(source, LEVELS, SIZE, max_corrupt=0.2))
    np.testing.assert_allclose(found[0][:, 0, 0, 0], [0, 1, 2, 4, 5, 6], atol=1e-4)
    assert logged(caplog) == [f"Image skipped: {files[1]}, record 0 cannot be read (1 of 7 skipped so far)"]


def test_refusals(tmp_path, files):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("this is not a file of records at all")
    with tf.io.TFRecordWriter(str(tmp_path / "bytes")) as writer:
        writer.write(b"\xff\xff no example")
    refused = [
        (tmp_path / "none-*", FileNotFoundError, "there is no .*none-"),
        ([files[0], tmp_path / "none"], FileNotFoundError, "there is no .*none"),
        ([], FileNotFoundError, r"there is no \[\]"),
        (tmp_path, ValueError, "is a folder: give its files, such as '.*/\\*'"),
        (tmp_path / "empty", ValueError, "uncompressed TFRecord files; got .*empty"),
        (tmp_path / "text", ValueError, "uncompressed TFRecord files; got .*text"),
        (tmp_path / "bytes", ValueError, "files of tf.train.Example; the first record is not one"),
    ]
    for pattern, error, message in refused:
        with pytest.raises(error, match=message):
            print(message, from_tfrecord(pattern))  # shown where nothing is raised
    with pytest.raises(ValueError, match="label_offset must be an integer of at least 0; got label_offset=-1"):
        from_tfrecord(files, label_offset=-1)
    with pytest.raises(ValueError, match=f"label_offset must be at most {max(LABELS)}, .*; got label_offset=9"):
        from_tfrecord(files, label_offset=9)
    with pytest.raises(ValueError, match="class_names must be a sequence of strings, one per class; got .*'abc'"):
        from_tfrecord(files, class_names="abc")


def test_records_that_are_all_damaged(tmp_path):
    files = write_records(tmp_path, PLAIN[:1], [1], shards=1)
    _at(files[0], 60, _flipped)
    with pytest.raises(ValueError, match="readable records; all 1 are damaged"):
        from_tfrecord(files)
