"""Images that cannot be read: skipped, counted and named; beyond the share that is allowed, one clear sentence."""

import logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_sets import LEVELS, assert_equal, batches, encode, numbered, stream, write_folder, write_records
from slow_rows import slow_after

from keras_vit.data import UnusableDataError, data_error, eval_pipeline, from_directory, from_tfrecord, train_pipeline
from keras_vit.data.pipeline import eval_batches

SIZE = 12


def cut(contents):
    return contents[:-14]


@pytest.fixture
def folder(tmp_path):
    """Images 0 to 11, of which 4 and 5 are cut short; each is a class of its own."""
    contents = [encode(image) for image in numbered(SIZE)]
    contents[4:6] = map(cut, contents[4:6])
    return write_folder(tmp_path / "folder", contents, range(SIZE))


@pytest.fixture
def source(folder):
    return from_directory(folder)


def labels_of(dataset, count=None):
    return [labels.tolist() for _, labels in batches(dataset, count)]


def skipped(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "keras_vit.data"]


def test_in_training_the_next_readable_image_of_the_source_takes_the_place(source, caplog):
    options = {"shuffle": False, "max_corrupt": 0.2}
    dataset = train_pipeline(source, LEVELS, 6, **options)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        inputs, labels = zip(*batches(dataset, 4), strict=True)
    assert np.array(labels).tolist() == [[0, 1, 2, 3, 6, 6], [6, 7, 8, 9, 10, 11]] * 2
    np.testing.assert_allclose(np.array(inputs)[..., 0, 0, 0], labels, atol=1e-4)
    first, second = skipped(caplog)  # once each, although every pass meets them
    assert "4.png must be a complete image" in first and "(1 of 12 skipped so far)" in first
    assert "5.png must be a complete image" in second and "(2 of 12 skipped so far)" in second


@pytest.mark.slow
def test_nothing_else_moves(source, tmp_path):
    whole = from_directory(write_folder(tmp_path / "whole", [encode(image) for image in numbered(SIZE)], range(SIZE)))
    options = {"seed": 3, "max_corrupt": 0.2, "augment": ("flip",)}
    expected = labels_of(train_pipeline(whole, LEVELS, 5, **options), 6)
    found = labels_of(train_pipeline(source, LEVELS, 5, **options), 6)
    for before, after in zip(expected, found, strict=True):
        assert after == [6 if label in (4, 5) else label for label in before]


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda source: source.cached(), stream], ids=["cached", "stream"])
def test_shards_starts_and_mixes_agree_about_the_gaps(source, make):
    source = make(source)
    options = {"seed": 1, "max_corrupt": 0.2, "mix": ("mixup(0.8)",)}
    whole = batches(train_pipeline(source, LEVELS, 6, **options), 4)
    last = train_pipeline(source, LEVELS, 6, shard=(2, 3), start_step=1, **options)
    assert_equal(batches(last, 3), [(images[4:], labels[4:]) for images, labels in whole[1:]])


@pytest.mark.slow
def test_in_evaluation_they_are_left_out(source, caplog):
    dataset = eval_pipeline(source, LEVELS, 4, max_corrupt=0.2)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        assert labels_of(dataset) == [[0, 1, 2, 3], [6, 7], [8, 9, 10, 11]]
    assert len(skipped(caplog)) == 2
    assert labels_of(eval_pipeline(source, LEVELS, 1, max_corrupt=0.2))[3:7] == [[3], [], [], [6]]


@pytest.mark.slow
def test_a_file_that_is_gone_is_named(source, folder, caplog):
    (folder / "007" / "0007.png").unlink()
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        assert len(labels_of(eval_pipeline(source, LEVELS, 12, max_corrupt=0.5))[0]) == 9
    assert any("007/0007.png cannot be read" in message for message in skipped(caplog))


@pytest.mark.slow
def test_beyond_the_share_fit_stops_with_one_sentence(source):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(SIZE)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(tf.errors.OpError) as raised:
        model.fit(train_pipeline(source, LEVELS, 6, max_corrupt=0.1), steps_per_epoch=4, shuffle=False, verbose=0)
    error = data_error(raised.value)
    assert isinstance(error, UnusableDataError) and isinstance(error, ValueError)
    assert str(error).startswith("2 of 12 images cannot be read; max_corrupt=0.1 allows 1: ")
    assert "4.png must be" in str(error) and str(error).endswith("Repair or remove them, or increase max_corrupt")
    assert "\n" not in str(error)


@pytest.mark.parametrize("make", slow_after(1, [stream, lambda source: source]), ids=["stream", "lookup"])
def test_where_none_may_be_unreadable_training_stops_at_the_first(source, make):
    """The default share of 12 images is none. The last batch of a pass may be shorter, and the error is the same."""
    for options in ({}, {"repeat": False, "drop_remainder": False}):
        dataset = train_pipeline(make(source), LEVELS, 6, shuffle=False, **options)
        with pytest.raises(tf.errors.OpError) as raised:
            batches(dataset, 2)
        assert re.match("[12] of 12 images cannot be read; max_corrupt=0.01 allows 0: ", str(data_error(raised.value)))


def test_other_errors_are_not_ours():
    assert data_error(tf.errors.InvalidArgumentError(None, None, "shapes differ")) is None
    assert data_error(ValueError("UnusableDataError: x")) is None


@pytest.mark.slow
def test_a_batch_without_one_readable_image_is_filled_too(source):
    options = {"shuffle": False, "max_corrupt": 0.2}
    pipeline = train_pipeline(stream(source), LEVELS, 1, **options)
    assert labels_of(pipeline, 8) == [[n] for n in (0, 1, 2, 3, 0, 0, 6, 7)]  # of a stream the first
    whole = batches(train_pipeline(source, LEVELS, 2, **options), 4)
    assert [labels.tolist() for _, labels in whole] == [[0, 1], [2, 3], [6, 6], [6, 7]]
    last = train_pipeline(source, LEVELS, 2, shard=(1, 2), start_step=2, **options)
    assert_equal(batches(last, 2), [(images[1:], labels[1:]) for images, labels in whole[2:]])


@pytest.mark.slow
def test_a_run_of_unreadable_images_stops(folder):
    for number in range(4, SIZE):
        path = folder / f"{number:03}" / f"{number:04}.png"
        path.write_bytes(b"no image")
    dataset = train_pipeline(from_directory(folder), LEVELS, 1, shuffle=False, max_corrupt=0.3)
    with pytest.raises(tf.errors.OpError) as raised:
        batches(dataset, 5)
    # Batches are read at the same time, so more than the first 4 may have been found.
    assert re.match("[4-8] of 12 images cannot be read; max_corrupt=0.3 allows 3: ", str(data_error(raised.value)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [stream, lambda source: source], ids=["stream", "lookup"])
def test_nothing_readable_stops_training_and_leaves_evaluation_empty(folder, make):
    for path in folder.glob("*/*"):
        path.write_bytes(b"no image")
    source = make(from_directory(folder))
    assert labels_of(eval_pipeline(source, LEVELS, 6, max_corrupt=1.0)) == [[], []]
    dataset = train_pipeline(source, LEVELS, 2, max_corrupt=1.0)
    with pytest.raises(tf.errors.OpError) as raised:
        batches(dataset, 1)
    assert str(data_error(raised.value)).startswith("12 of 12 images cannot be read; max_corrupt=1 allows 11: ")


@pytest.mark.slow
def test_evaluate_is_strict_and_names_the_file(source, folder):
    with pytest.raises(ValueError, match="4.png must be a complete image.*begins as PNG but is truncated"):
        list(eval_batches(source, LEVELS, 12))
    (folder / "002" / "0002.png").unlink()
    with pytest.raises(FileNotFoundError, match="0002.png"):
        list(eval_batches(source, LEVELS, 3))


@pytest.mark.slow
def test_labels_beyond_the_classes_are_no_corrupt_images(tmp_path):
    files = write_records(tmp_path, [encode(image) for image in numbered(3)], [1, 2, 3])
    source = from_tfrecord(files, class_names=["a", "b", "c"])
    for dataset in (eval_pipeline(source, LEVELS, 3), train_pipeline(source, LEVELS, 3)):
        with pytest.raises(tf.errors.OpError) as raised:
            batches(dataset, 1)
        sentence = "labels must be from 0 to 2; the source contains [3]"
        assert str(data_error(raised.value)) == sentence


@pytest.mark.slow
def test_one_corrupt_jpeg_and_one_cut_record_among_500(tmp_path, caplog):
    contents = [encode(image, "JPEG", quality=100) for image in np.repeat(numbered(250), 2, axis=0)]
    contents[123] = cut(contents[123])
    files = write_records(tmp_path, contents, np.zeros(500, int), shards=5)
    with open(files[4], "r+b") as file:
        file.truncate(files[4].stat().st_size - 30)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        source = from_tfrecord(tmp_path / "train-*")
        (found,) = batches(eval_pipeline(source, LEVELS, 500))
    assert source.size == 499
    np.testing.assert_allclose(found[0][:, 0, 0, 0], [n // 2 for n in range(499) if n != 123], atol=1)
    assert [message.split(str(tmp_path))[1][:35] for message in skipped(caplog)] == [
        "/train-00004-of-00005, record 99: i",
        "/train-00001-of-00005, record 23 mu",
    ]
    assert "(1 of 499 skipped so far)" in skipped(caplog)[1]


def test_shares_out_of_range_are_refused(source):
    for share in (-0.1, 1.5, True, "1"):
        with pytest.raises(ValueError, match="max_corrupt must be a number in"):
            train_pipeline(source, LEVELS, 2, max_corrupt=share)
