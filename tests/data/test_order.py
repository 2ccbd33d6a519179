"""The order of training, with and without lookup: passes, later starts, shards, repetitions, parallelism."""

import numpy as np
import pytest
import tensorflow as tf
from image_sets import LEVELS, assert_equal, batches, numbered, stream
from slow_rows import slow_after

from keras_vit.data import eval_pipeline, from_arrays, train_pipeline

SIZE = 11
SOURCE = from_arrays(numbered(SIZE), np.arange(SIZE))
SOURCES = {"lookup": SOURCE, "stream": stream(SOURCE)}
BOTH = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
RANDOM = {"augment": ("shift", "flip"), "mix": ("mixup(0.8)",)}
NOISE = from_arrays(np.random.default_rng(0).integers(0, 256, (SIZE, 9, 12, 1), np.uint8), np.arange(SIZE))


def numbers(dataset, count=None):
    """The numbers of the images in each batch, checked against the labels."""
    found = []
    for inputs, labels in batches(dataset, count):
        assert inputs.dtype == np.float32 and labels.dtype == np.int32
        np.testing.assert_allclose(inputs, np.broadcast_to(labels[:, None, None, None], inputs.shape), atol=1e-4)
        found.append(labels.tolist())
    return found


def passes(stream_of_numbers):
    return [tuple(stream_of_numbers[start : start + SIZE]) for start in range(0, len(stream_of_numbers), SIZE)]


@BOTH
def test_every_pass_has_every_image_in_an_order_of_its_own(source):
    found = numbers(train_pipeline(source, LEVELS, 4, seed=1), 11)
    assert all(len(batch) == 4 for batch in found)
    four = passes(sum(found, []))
    assert all(sorted(one) == list(range(SIZE)) for one in four)
    assert len(set(four)) == 4 and tuple(range(SIZE)) not in four


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_seed_alone_determines_the_order(source):
    def order(seed, global_seed):
        tf.random.set_seed(global_seed)
        return numbers(train_pipeline(source, LEVELS, 4, seed=seed), 6)

    assert order(1, 1) == order(1, 2) != order(2, 1)


@pytest.mark.parametrize("source", slow_after(1, SOURCES.values()), ids=SOURCES)
def test_one_pass_in_order(source):
    plain = {"shuffle": False, "repeat": False}
    dataset = train_pipeline(source, LEVELS, 4, **plain)
    assert numbers(dataset) == numbers(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert dataset.element_spec[0].shape == (4, 8, 8, 1) and int(dataset.cardinality()) == 2
    rest = train_pipeline(source, LEVELS, 4, drop_remainder=False, **plain)
    assert numbers(rest) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert rest.element_spec[0].shape == (None, 8, 8, 1) and int(rest.cardinality()) == 3
    assert numbers(train_pipeline(source, LEVELS, 4, drop_remainder=False, start_step=2, **plain)) == [[8, 9, 10]]
    assert numbers(train_pipeline(source, LEVELS, 4, start_step=3, **plain)) == []
    assert int(train_pipeline(source, LEVELS, 4).cardinality()) == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize("source", slow_after(1, SOURCES.values()), ids=SOURCES)
@pytest.mark.parametrize("options", slow_after(1, [{"repeats": 3, **RANDOM}, {}]), ids=["random", "plain"])
def test_a_later_start_gives_the_later_batches(source, options):
    whole = batches(train_pipeline(source, LEVELS, 4, seed=3, **options), 9)
    assert not np.array_equal(whole[0][0], whole[6][0])
    for start in (6,) if options else (1, 6):  # in the third pass; within the first
        later = train_pipeline(source, LEVELS, 4, seed=3, start_step=start, **options)
        assert_equal(batches(later, 3), whole[start:][:3])


@pytest.mark.parametrize(
    ("source", "options"),
    slow_after(
        1,
        [
            (NOISE, {"repeats": 3, "augment": ("inception_crop",), "mix": ("mixup(0.8)", "cutmix(1.0)")}),
            (NOISE, {}),
            (stream(NOISE), {"repeats": 3, **RANDOM}),
        ],
    ),
    ids=["mixed", "plain", "stream"],
)
def test_shards_are_rows_of_the_whole_batch(source, options):
    whole = batches(train_pipeline(source, LEVELS, 6, **options), 4)
    for index in (0, 2):
        rows = slice(2 * index, 2 * index + 2)
        expected = [tuple(values[rows] for values in batch) for batch in whole]
        assert_equal(batches(train_pipeline(source, LEVELS, 6, shard=(index, 3), **options), 4), expected)


@pytest.mark.slow
def test_shards_of_a_last_batch_may_be_short_or_empty():
    options = {"shuffle": False, "repeat": False, "drop_remainder": False}
    parts = [numbers(eval_pipeline(SOURCE, LEVELS, 8, shard=(index, 4))) for index in range(4)]
    assert parts == [[[0, 1], [8, 9]], [[2, 3], [10]], [[4, 5], []], [[6, 7], []]]

    def mixed(shard):
        return batches(train_pipeline(NOISE, LEVELS, 8, shard=shard, mix=("mixup(0.8)",), **options))

    halves = zip(mixed((0, 2)), mixed((1, 2)), strict=True)
    joined = [tuple(np.concatenate(pair) for pair in zip(*half, strict=True)) for half in halves]
    assert_equal(joined, mixed((0, 1)))


@pytest.mark.slow
@BOTH
def test_repeats_take_fewer_images_several_times_far_apart(source):
    found = sum(numbers(train_pipeline(source, LEVELS, 3, seed=2, repeats=3), 11), [])
    once = sum(numbers(train_pipeline(source, LEVELS, 3, seed=2), 11), [])
    for repeated, plain in zip(passes(found), passes(once), strict=True):
        counts = {number: repeated.count(number) for number in repeated}
        assert counts == {number: 3 for number in plain[:3]} | {plain[3]: 2}  # ceil(11 / 3) images
    spread = numbers(train_pipeline(source, LEVELS, 9, seed=2, repeats=3), 1)[0]
    assert spread == list(passes(once)[0][:3]) * 3
    varied = batches(train_pipeline(NOISE, LEVELS, 9, repeats=3, augment=("random_resized_crop",)), 1)[0][0]
    assert len(np.unique(varied.reshape(9, -1), axis=0)) == 9  # each repetition is augmented anew


@pytest.mark.slow
@BOTH
def test_batches_do_not_depend_on_the_number_of_threads(source, monkeypatch):
    def made_by(threads):
        monkeypatch.setattr("keras_vit.data.batches._parallelism", lambda: threads)
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        return batches(train_pipeline(source, LEVELS, 4, **RANDOM).with_options(options), 6)

    assert_equal(made_by(1), made_by(8))


def test_a_stream_of_another_length_than_it_says_is_refused():
    source = stream(SOURCE)
    short = type(source)(source.dataset.take(9), source.class_names, SIZE)
    with pytest.raises(tf.errors.OpError, match="expected to contain 11 elements but contained only 9"):
        batches(train_pipeline(short, LEVELS, 4), 3)
