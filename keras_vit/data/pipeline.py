"""From a source of images to batches of model input: `train_pipeline` and `eval_pipeline`."""

from collections.abc import Sequence

import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data import images as readers
from keras_vit.data import preprocessing as ops
from keras_vit.data.augment import parse_augment, parse_mix
from keras_vit.data.batches import read_batches
from keras_vit.data.corrupt import Unreadable, data_error
from keras_vit.data.order import Order
from keras_vit.data.sources import ImageSource
from keras_vit.data.stages import DTYPES, evaluation_stages, training_stages


def train_pipeline(
    source: ImageSource,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    seed: int = 0,
    augment: Sequence[str] = (),
    mix: Sequence[str] = (),
    repeats: int = 1,
    shuffle: bool = True,
    repeat: bool = True,
    drop_remainder: bool = True,
    start_step: int = 0,
    shard: tuple[int, int] = (0, 1),
    dtype: str = "float32",
    max_corrupt: float = 0.01,
) -> tf.data.Dataset:
    """Batches to train on: shuffled, augmented, without end.

    Batch number n is a function of the arguments and n alone, whatever the parallelism and wherever the pipeline
    starts: the order of a pass is drawn from `seed` and the number of the pass, an augmentation draws from `seed` and
    the running number of its row, and a mix from `seed` and n. (Layers of keras-cv draw as they like.)

    An image that cannot be read is skipped, counted and named in the log `keras_vit.data`. Its place is taken by the
    next readable image of the same batch, or of the source if the batch has none, so that everything else stays as it
    is.

    Args:
        source: an `ImageSource`. Without lookup its images are shuffled in a buffer of 10,000, every worker reads
            all of them, and a later start reads what it skips, but decodes nothing of it.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        batch_size: images per batch, of all workers together.
        seed: integer from 0.
        augment: texts such as `("inception_crop", "flip", "randaugment(2, 15)")`, see
            `keras_vit.data.augment.parse_augment`. Without a crop, images are resized by `preprocessing`.
        mix: texts such as `("mixup(0.8)", "cutmix(1.0)")`; each image is mixed with the one of the row before.
        repeats: how often an image comes in a pass, augmented anew each time. A pass is as long as without, so that
            it has only one in `repeats` of the images (repeated augmentation of DeiT, see `order.Order`).
        shuffle: False keeps the order of the source.
        repeat: True gives pass after pass without end (use `steps_per_epoch`); False ends after the first pass, and
            iterating anew gives the same batches again.
        drop_remainder: drop what does not fill a last batch, so that every batch has the same shape.
        start_step: number of the first batch, from 0.
        shard: `(index, count)`: rows index * batch_size / count to (index + 1) * batch_size / count of every batch,
            equal to those of the whole batch. Of a last batch that is not full, a shard may have no rows.
        dtype: `"float32"`, or `"uint8"` for pixel values 0 to 255, rounded, for a model that rescales them itself.
        max_corrupt: largest share in [0, 1] of the images of the source that may be unreadable. One more, and the
            pipeline raises; `data_error` finds the sentence in what `model.fit` raises.

    Returns:
        `tf.data.Dataset` of (`dtype` (batch, height, width, channels), int32 (batch,)); with `mix` the labels are
        float32 (batch, classes), of sum 1. Its attribute `steps_per_epoch` is the number of full batches of one pass.

    Raises:
        TypeError: if `source` is no `ImageSource` or `preprocessing` no `Preprocessing`.
        ValueError: on an argument out of range, an unknown augmentation, an empty source.
    """
    ops.check(preprocessing)
    checks.check_integer("batch_size", batch_size)
    checks.check_integer("seed", seed, minimum=0)
    checks.check_integer("repeats", repeats)
    checks.check_integer("start_step", start_step, minimum=0)
    for name, flag in (("shuffle", shuffle), ("repeat", repeat), ("drop_remainder", drop_remainder)):
        checks.check_flag(name, flag)
    _check_source(source)
    if drop_remainder and not repeat and batch_size > source.size:
        raise ValueError(
            f"batch_size must not exceed the {source.size} images of the source, or drop_remainder=True "
            f"leaves none; got batch_size={batch_size}"
        )
    if repeats > 1 and not shuffle:
        raise ValueError(
            "repeats above 1 needs shuffle=True, or the same images would be left out in every pass; "
            f"got repeats={repeats}"
        )
    index, count = _check_shard(shard, batch_size)
    operations, mixer = parse_augment(augment), parse_mix(mix)
    has_partner = mixer is not None and count > 1
    prepare, finish = training_stages(
        preprocessing,
        operations,
        mixer,
        seed=seed,
        dtype=checks.check_choice("dtype", dtype, DTYPES),
        classes=len(source.class_names),
        has_partner=has_partner,
    )
    order = Order(source, batch_size, seed, shuffle, repeat, repeats, drop_remainder)
    dataset = read_batches(
        order,
        start_step,
        prepare,
        finish,
        Unreadable(source, preprocessing.channels, max_corrupt),
        rows_of=_rows_of(index, count, batch_size),
        before=int(has_partner),
    )
    steps = tf.data.INFINITE_CARDINALITY if repeat else max(order.steps - start_step, 0)
    dataset = _finished(dataset, steps, batch_size // count if repeat or drop_remainder else None)
    dataset.steps_per_epoch = max(source.size // batch_size, 1)  # for the message of a fit without it
    return dataset


def eval_pipeline(
    source: ImageSource,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    shard: tuple[int, int] = (0, 1),
    dtype: str = "float32",
    max_corrupt: float = 0.01,
) -> tf.data.Dataset:
    """Batches to evaluate on: every image once, in the source's order; the last batch may be smaller.

    An image that cannot be read is left out of its batch, counted and named in the log `keras_vit.data`.

    Args:
        source: an `ImageSource`.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        batch_size: images per batch, of all workers together.
        shard, dtype, max_corrupt: as in `train_pipeline`.

    Returns:
        `tf.data.Dataset` of (`dtype` (batch, height, width, channels), int32 (batch,)).

    Raises:
        TypeError: if `source` is no `ImageSource` or `preprocessing` no `Preprocessing`.
        ValueError: on an argument out of range, an empty source.
    """
    unreadable = Unreadable(_check_source(source), ops.check(preprocessing).channels, max_corrupt)
    return _eval_pipeline(source, preprocessing, batch_size, shard, dtype, unreadable)


def eval_batches(source, preprocessing, batch_size):
    """Yields the batches of `eval_pipeline` as NumPy arrays; every image must be readable.

    Raises:
        ValueError: naming the file, where one cannot be decoded.
        FileNotFoundError: where a file has gone since the source was made.
    """
    unreadable = Unreadable(_check_source(source), ops.check(preprocessing).channels, 0.0)
    try:
        yield from _eval_pipeline(source, preprocessing, batch_size, (0, 1), "float32", unreadable).as_numpy_iterator()
    except tf.errors.OpError as error:
        for position in unreadable.positions if source.files else ():
            readers.as_images(source.files[position])[0].read(preprocessing.channels)  # raises with its reason
        raise (data_error(error) or error) from None


def _eval_pipeline(source, preprocessing, batch_size, shard, dtype, unreadable):
    checks.check_integer("batch_size", batch_size)
    index, count = _check_shard(shard, batch_size)
    order = Order(source, batch_size)
    prepare, finish = evaluation_stages(preprocessing, checks.check_choice("dtype", dtype, DTYPES))
    rows_of = _rows_of(index, count, batch_size)
    return _finished(
        read_batches(order, 0, prepare, finish, unreadable, rows_of=rows_of, fill=False), order.steps, None
    )


def _check_source(source):
    if not isinstance(source, ImageSource):
        raise TypeError(
            f"source must be an ImageSource, such as keras_vit.data.from_directory(...); got {type(source).__name__}"
        )
    if source.size < 1:
        raise ValueError("source must hold at least one image; it is empty")
    return source


def _check_shard(shard, batch_size):
    is_pair = isinstance(shard, (tuple, list)) and len(shard) == 2
    if not is_pair or not all(isinstance(part, int) and not isinstance(part, bool) for part in shard):
        raise ValueError(f"shard must be a pair of integers (index, count); got shard={shard!r}")
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard must be (index, count) with an index from 0 to count - 1; got shard={shard}")
    if batch_size % count:
        raise ValueError(
            f"batch_size must be divisible by the count of shard; got batch_size={batch_size}, shard={shard}"
        )
    return index, count


def _rows_of(index, count, batch_size):
    """Function from the length of a batch to the rows (first, end) of a shard."""
    first, end = (tf.constant(place * batch_size // count, tf.int64) for place in (index, index + 1))
    return lambda length: (tf.minimum(first, length), tf.minimum(end, length))


def _finished(dataset, steps, rows):
    """States what is known: the number of batches and their rows, and how tf.distribute is to share them out."""
    if rows is not None:
        dataset = dataset.map(
            lambda images, labels: (
                tf.ensure_shape(images, (rows, *images.shape[1:])),
                tf.ensure_shape(labels, (rows, *labels.shape[1:])),
            )
        )
    options = tf.data.Options()
    options.deterministic = True
    # All parallelism is stated, and without its thread an iterator is gone at once: TensorFlow's may miss that it is
    # to end and sleep on, up to a minute.
    options.autotune.enabled = False
    # Not files, which it would choose: each worker takes its part of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(1).with_options(options)  # beside those that are being read: batches may be large
