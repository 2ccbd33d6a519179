"""train_pipeline and eval_pipeline: the same batches from every source, augmentation, mixing, types and refusals."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from image_sets import LEVELS, assert_equal, batches, encode, numbered, stream, write_folder, write_records
from small_digits import IMAGES, LABELS, NAMES, SmallDigits

from keras_vit import Preprocessing
from keras_vit.data import (
    ImageSource,
    eval_pipeline,
    from_arrays,
    from_directory,
    from_tfds,
    from_tfrecord,
    train_pipeline,
)
from keras_vit.data.pipeline import convert

SIZE = 11
SOURCE = from_arrays(numbered(SIZE), np.arange(SIZE))
PROTOCOL = Preprocessing(size=12, mean=(0.4,), std=(0.3,))  # resizes and standardises


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{kind: source} of the digits that SmallDigits trains on, in one order."""
    path = tmp_path_factory.mktemp("sources")
    builder = SmallDigits(data_dir=path)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    images, labels = IMAGES[:50], LABELS[:50]
    order = np.argsort(labels, kind="stable")  # that of a folder
    images, labels = images[order], labels[order]
    contents = [encode(image) for image in images]
    records = write_records(path / "records", contents, labels, shards=3)
    prepared = from_tfds(builder, "train")
    stored = [int(e["number"]) for e in _in_file_order(builder)]
    return {
        "arrays": from_arrays(images, labels, NAMES),
        "folder": from_directory(write_folder(path / "folder", contents, labels)),
        "tfrecord": from_tfrecord(records, class_names=NAMES),
        "tfds": prepared.take([stored.index(n) for n in order]),
    }


def _in_file_order(builder):
    reading = tfds.ReadConfig(interleave_cycle_length=1)
    return tfds.as_numpy(builder.as_dataset(split="train", shuffle_files=False, read_config=reading))


def test_every_source_gives_the_same_batches_bit_for_bit(sources):
    expected = batches(eval_pipeline(sources["arrays"], PROTOCOL, 16))
    assert [len(labels) for _, labels in expected] == [16, 16, 16, 2]
    assert expected[0][0].dtype == np.float32 and expected[0][1].dtype == np.int32
    for kind, source in {**sources, "stream": stream(sources["folder"])}.items():
        print(kind)
        assert_equal(batches(eval_pipeline(source, PROTOCOL, 16)), expected)


def test_training_batches_are_the_same_too(sources):
    options = {"seed": 2, "augment": ("flip",), "mix": ("mixup(0.2)",)}
    expected = batches(train_pipeline(sources["arrays"], PROTOCOL, 16, **options), 5)
    for kind in ("folder", "tfrecord", "tfds"):
        assert_equal(batches(train_pipeline(sources[kind], PROTOCOL, 16, **options), 5), expected)


@pytest.mark.slow
def test_large_jpegs_may_be_decoded_at_a_part_of_their_size(tmp_path):
    waves = (127.5 + 100 * np.sin(np.arange(96) / 9)).astype(np.uint8)
    large = np.broadcast_to(waves[:, None, None], (96, 96, 3))
    contents = [encode(image, "JPEG") for image in (large, large[:16, :16])]
    source = from_directory(write_folder(tmp_path, contents, [0, 1], "jpg"))
    [(plain, _)], [(scaled, _)] = (
        batches(eval_pipeline(source, PROTOCOL, 2, scaled_decoding=choice)) for choice in (False, True)
    )
    np.testing.assert_array_equal(plain[1], scaled[1])
    assert 0 < np.abs(plain[0] - scaled[0]).max() < 0.1
    with pytest.raises(ValueError, match="scaled_decoding must be"):
        eval_pipeline(source, PROTOCOL, 2, scaled_decoding="large")


def test_eval_keeps_the_order_and_the_last_images():
    dataset = eval_pipeline(SOURCE, LEVELS, 4)
    assert dataset.element_spec[0].shape == (None, 8, 8, 1) and int(dataset.cardinality()) == 3
    for _ in range(2):
        found = batches(dataset)
        assert [labels.tolist() for _, labels in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
        np.testing.assert_allclose(found[2][0][:, 3, 3, 0], [8, 9, 10], atol=1e-5)


@pytest.mark.parametrize("pipeline", [train_pipeline, eval_pipeline])
def test_no_thread_tunes_what_is_stated(pipeline):
    """It would keep an iterator that is to end: sometimes for as long as it lived, up to a minute."""
    assert pipeline(SOURCE, LEVELS, 4).options().autotune.enabled is False


def augmented(names, count=64, seed=0, **options):
    """The same 16 x 16 image, augmented `count` times."""
    image = np.random.default_rng(0).integers(1, 256, (1, 16, 16, 3), dtype=np.uint8)
    protocol = Preprocessing(size=16, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    dataset = train_pipeline(from_arrays(image, [0]), protocol, count, augment=names, seed=seed, **options)
    return image[0].astype(np.float32), batches(dataset, 1)[0][0]


@pytest.mark.slow
def test_operations_draw_apart_and_from_the_seed():
    image, results = augmented(("flip", "shift"), count=256, seed=3)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    both = [padded, padded[:, ::-1]]
    possible = [one[y : y + 16, x : x + 16] for one in both for y in range(5) for x in range(5)]
    found = {next(n for n, one in enumerate(possible) if np.allclose(result, one, atol=1e-3)) for result in results}
    assert found == set(range(50))
    np.testing.assert_array_equal(results, augmented(("flip", "shift"), count=256, seed=3)[1])
    assert not np.array_equal(results, augmented(("flip", "shift"), count=256, seed=4)[1])


def test_a_crop_takes_the_place_of_the_resizing():
    contents = np.random.default_rng(0).integers(0, 256, (1, 40, 30, 3), dtype=np.uint8)
    protocol = Preprocessing(size=24, crop=16, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    dataset = train_pipeline(from_arrays(contents, [0]), protocol, 8, augment=("inception_crop(0.2, 0.3)",))
    images = batches(dataset, 1)[0][0]
    assert images.shape == (8, 16, 16, 3) and len(np.unique(images.reshape(8, -1), axis=0)) == 8


@pytest.mark.slow
def test_a_function_of_the_user_is_one_of_the_operations():
    def brighter(image, seed):
        return image + 100.0 * tf.random.stateless_uniform((), seed)

    image, results = augmented(("flip", brighter), seed=3)
    _, flipped = augmented(("flip",), seed=3)
    added = results - flipped
    assert np.ptp(added, axis=(1, 2, 3)).max() < 1e-3 and added.min() > 0
    assert len(np.unique(np.round(added.mean((1, 2, 3)), 3))) == 64  # each row has a draw of its own
    np.testing.assert_array_equal(results, augmented(("flip", brighter), seed=3)[1])
    with pytest.raises(ValueError, match="a crop must be the first operation"):
        train_pipeline(SOURCE, LEVELS, 4, augment=(brighter, "inception_crop"))


def test_functions_of_the_user_may_branch_on_tensors():
    """AutoGraph converts them, and nothing else in a pipeline."""
    images = np.broadcast_to(np.arange(8, dtype="uint8")[:, None, None, None], (8, 8, 8, 3))

    def odd_ones_are_100(image):
        if image[0, 0, 0] % 2 == 1:
            image = tf.fill(tf.shape(image), tf.constant(100, tf.uint8))
        return image

    def large_ones_are_50(image, seed):
        if image[0, 0, 0] > 4:
            image = 0 * image + 50
        return image

    source = from_arrays(images, np.arange(8), list("abcdefgh")).map_images(odd_ones_are_100)
    [(found, _)] = batches(train_pipeline(source, LEVELS, 8, shuffle=False, augment=(large_ones_are_50,)), 1)
    np.testing.assert_allclose(found[:, 0, 0, 0], [0, 50, 2, 50, 4, 50, 50, 50], atol=1e-4)


@pytest.mark.slow
def test_layers_of_keras_cv_run_on_images():
    image, results = augmented(("keras_cv.RandomCutout(1.0, 1.0, fill_mode='constant', fill_value=9.0)", "flip"))
    is_nine = np.isclose(results, 9.0).all(axis=-1)
    assert len(np.unique(is_nine.reshape(len(is_nine), -1), axis=0)) > 32  # each image has a window of its own
    is_kept = [np.isclose(results, one, atol=1e-3).all(axis=-1) | is_nine for one in (image, image[:, ::-1])]
    assert [kept.all(axis=(1, 2)).any() for kept in is_kept] == [True, True]


def test_mixing_takes_the_row_before_and_gives_label_weights():
    images, labels = batches(train_pipeline(SOURCE, LEVELS, 5, seed=4, mix=("mixup(1.0)",)), 1)[0]
    plain_images, plain = batches(train_pipeline(SOURCE, LEVELS, 5, seed=4), 1)[0]
    share = labels[0, plain[0]]
    assert 0.5 <= share < 1 and labels.dtype == np.float32 and labels.shape == (5, SIZE)
    one_hot = np.eye(SIZE, dtype=np.float32)[plain]
    np.testing.assert_allclose(labels, share * one_hot + (1 - share) * np.roll(one_hot, 1, axis=0), atol=1e-6)
    mixed = share * plain_images + (1 - share) * np.roll(plain_images, 1, axis=0)
    np.testing.assert_allclose(images, mixed, atol=1e-4)


@pytest.mark.slow
def test_uint8_is_the_rounded_image():
    noise = from_arrays(np.random.default_rng(0).integers(0, 256, (6, 20, 20, 1), np.uint8), np.arange(6))
    protocol = Preprocessing(size=9, mean=(0.0,), std=(1 / 255,))
    for make in (
        lambda dtype: eval_pipeline(noise, protocol, 6, dtype=dtype),
        lambda dtype: train_pipeline(noise, protocol, 6, dtype=dtype, augment=("flip",), mix=("cutmix(1.0)",)),
    ):
        levels, exact = (batches(make(dtype), 1)[0][0] for dtype in ("uint8", "float32"))
        assert levels.dtype == np.uint8
        np.testing.assert_allclose(levels, exact, atol=0.5001)


def test_uint8_rounds_to_even_and_clips():
    levels = convert(LEVELS, "uint8", tf.constant([-3.0, 0.5, 1.5, 254.7, 300.0]))
    assert levels.dtype == tf.uint8 and levels.numpy().tolist() == [0, 0, 2, 255, 255]


def test_refusals():
    empty = ImageSource(SOURCE.dataset.take(0), SOURCE.class_names, 0)
    refused = [
        ({"augment": ("flop",)}, "augment must be one of .*got augment='flop' .did you mean 'flip'"),
        ({"augment": "flip"}, "augment must be a sequence of strings"),
        ({"mix": ("mixup",)}, "mixup"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1; got batch_size=0"),
        ({"seed": -1}, "seed must be an integer of at least 0"),
        ({"start_step": -1}, "start_step must be an integer of at least 0"),
        ({"repeats": 0}, "repeats must be an integer of at least 1"),
        ({"repeats": 3, "shuffle": False}, "repeats above 1 needs shuffle=True.*got repeats=3"),
        ({"repeat": 1}, "repeat must be True or False"),
        ({"dtype": "int8"}, "dtype must be one of 'float32', 'uint8'"),
        ({"batch_size": 12, "repeat": False}, "at most 11, the images, .*; got 12"),
        ({"shard": (0, 3)}, r"divisible by the count of shard; got 4 and shard=\(0, 3\)"),
        ({"shard": (2, 2)}, "index from 0 to count - 1"),
        ({"shard": 2}, "integers .index, count."),
        ({"source": empty}, "source must contain at least one image; it is empty"),
    ]
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            print(message, train_pipeline(**{"source": SOURCE, "preprocessing": LEVELS, "batch_size": 4, **arguments}))
    for arguments, message in (
        ((SOURCE, LEVELS, 2.5), "batch_size must be an integer"),
        ((empty, LEVELS, 4), "at least one image"),
    ):
        with pytest.raises(ValueError, match=message):
            print(message, eval_pipeline(*arguments))
    with pytest.raises(TypeError, match="source must be an ImageSource.*got _.*Dataset"):
        eval_pipeline(SOURCE.dataset, LEVELS, 4)
    with pytest.raises(TypeError, match="preprocessing must be a keras_vit.Preprocessing"):
        train_pipeline(SOURCE, 224, 4)
