"""train_pipeline and eval_pipeline: batches of model input from a source of images."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data import images as readers
from keras_vit.data import preprocessing as preparation
from keras_vit.data.augment import parse_augment, parse_mix
from keras_vit.data.batches import read_batches
from keras_vit.data.corrupt import Unreadable, data_error
from keras_vit.data.order import Order
from keras_vit.data.sources import ImageSource

DTYPES = ("float32", "uint8")
_BATCH = 1_000_003  # separates the random numbers of batch n from those of row n


def train_pipeline(
    source: ImageSource,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    seed: int = 0,
    augment: Sequence[str | Callable] = (),
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
    """Return shuffled, augmented and endless batches to train on.

    Batch n depends only on the arguments and n. The order of a pass is drawn from `seed` and the number of the pass, an
    augmentation draws from `seed` and the running number of its row, and a mix from `seed` and n. The layers of
    keras-cv are the only exception: their random numbers are not reproducible.

    An unreadable image is skipped, counted and logged to `keras_vit.data`. The next readable image of the source
    replaces it; in a source without lookup, the first readable one. All other images keep their place.

    The dataset first orders the images, then reads and augments those of each batch, and finally mixes them.

    Args:
        source: an `ImageSource`. Without lookup, its images are shuffled in a buffer of 10,000, every worker reads all
            of them, and with `start_step` above 0 the skipped images are read, but not decoded.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        batch_size: images per batch, over all workers.
        seed: integer, 0 or above.
        augment: strings such as `("inception_crop", "flip", "randaugment(2, 15)")`, see
            `keras_vit.data.augment.parse_augment`. Without a crop, images are resized by `preprocessing`. After the
            crop, functions may stand anywhere: they map (image, seed) to an image of the same shape, both float32
            (height, width, channels) on [0, 255]; seed is an int64 tensor (2,) for `tf.random.stateless_uniform`.
        mix: strings such as `("mixup(0.8)", "cutmix(1.0)")`; each image is mixed with that of the previous row.
        repeats: how often an image appears in a pass, each time with a new augmentation (repeated augmentation of DeiT,
            see `order.Order`). The length of a pass stays the same, so a pass has size / repeats different images.
        shuffle: False keeps the order of the source.
        repeat: True returns endless passes (use `steps_per_epoch`). False ends after the first pass; a second iteration
            returns the same batches.
        drop_remainder: whether to drop a last batch that is not full, so that all batches have the same shape.
        start_step: number of the first batch, 0 or above.
        shard: `(index, count)`: selects rows index * batch_size / count to (index + 1) * batch_size / count of every
            batch; they are equal to the same rows of the whole batch. A last batch that is not full may leave a shard
            without rows.
        dtype: `"float32"`, or `"uint8"` for rounded pixel values 0 to 255, for a model that rescales its input.
        max_corrupt: maximum share of unreadable images in the source, in [0, 1]. With more, or if no image is readable,
            the pipeline raises an error; `data_error` extracts its message from what `model.fit` raises.

    Returns:
        `tf.data.Dataset` of (`dtype` (batch, height, width, channels), int32 (batch,)). For native aspect ratios, the
        inputs are a dict of patches and coordinates, see `native_pipeline`. With `mix`, the labels are float32 (batch,
        classes) and sum to 1. `steps_per_epoch`, an attribute of the dataset, is the number of full batches per pass,
        and `class_names` are those of the source.

    Raises:
        TypeError: if `source` is not an `ImageSource` or `preprocessing` not a `Preprocessing`.
        ValueError: on an argument out of range, an unknown augmentation or an empty source.
    """
    check(source, preprocessing, batch_size, shard, dtype)
    checks.check_integer("repeats", repeats)
    check_passes(source.size, batch_size, seed, start_step, shuffle, repeat, drop_remainder)
    if repeats > 1 and not shuffle:
        raise ValueError(f"repeats above 1 needs shuffle=True, or passes skip the same images; got repeats={repeats}")
    operations, mixer = parse_augment(augment, with_functions=True), parse_mix(mix)
    if preprocessing.max_tokens and (mixer or operations and operations[0].kind == "crop"):
        raise ValueError(f"augment must not crop, and mix must be empty, for native sizes; got {augment} and {mix}")
    has_partner = mixer is not None and shard[1] > 1
    order = Order(source, batch_size, seed, shuffle, repeat, repeats, drop_remainder, shard, has_partner)
    unreadable = Unreadable(source, preprocessing.channels, max_corrupt, needed=1)
    return _batches(order, preprocessing, dtype, unreadable, start_step, operations, mixer)


def eval_pipeline(
    source: ImageSource,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    shard: tuple[int, int] = (0, 1),
    dtype: str = "float32",
    max_corrupt: float = 0.01,
    scaled_decoding: bool = False,
) -> tf.data.Dataset:
    """Return batches to evaluate on: every image once, in the source's order.

    The last batch may be smaller. An unreadable image is left out of its batch, counted and logged to `keras_vit.data`.

    Args:
        source: an `ImageSource`.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        batch_size: images per batch, over all workers.
        shard, dtype: as in `train_pipeline`.
        max_corrupt: as in `train_pipeline`. With 1, there is no error even if no image is readable; all batches are
            then empty.
        scaled_decoding: whether a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if this leaves at least 1.5 times the
            sides to which it is resized. Large images take less time; their pixels differ from those of Pillow.

    Returns:
        `tf.data.Dataset` of (`dtype` (batch, height, width, channels), int32 (batch,)).

    Raises:
        TypeError: if `source` is not an `ImageSource` or `preprocessing` not a `Preprocessing`.
        ValueError: on an argument out of range or an empty source.
    """
    check(source, preprocessing, batch_size, shard, dtype)
    checks.check_flag("scaled_decoding", scaled_decoding)
    unreadable = Unreadable(source, preprocessing.channels, max_corrupt)
    order = Order(source, batch_size, shard=shard)
    return _batches(order, preprocessing, dtype, unreadable, scaled_for=preprocessing if scaled_decoding else None)


def eval_batches(source, preprocessing, batch_size, max_corrupt=0.0):
    """Yield the batches of `eval_pipeline` as NumPy arrays; by default, every image must be readable.

    Raises:
        ValueError: on an image that cannot be decoded; the message names its file.
        FileNotFoundError: if a file was deleted after the source was created.
    """
    check(source, preprocessing, batch_size)
    unreadable = Unreadable(source, preprocessing.channels, max_corrupt)
    try:
        yield from _batches(Order(source, batch_size), preprocessing, "float32", unreadable).as_numpy_iterator()
    except tf.errors.OpError as error:
        for position in unreadable.positions if source.files and not max_corrupt else ():
            readers.as_images(source.files[position])[0](preprocessing.channels)  # raises with the reason
        raise (data_error(error) or error) from None


@tf.autograph.experimental.do_not_convert
def _batches(order, preprocessing, dtype, unreadable, start_step=0, operations=(), mixer=None, scaled_for=None):
    """Return the batches of `order` from `start_step` on, with the options for tf.distribute.

    Without `Unreadable.needed`, an unreadable image is left out instead of replaced.
    """
    shape = preparation.row_shape(preprocessing)

    def key_of(number):
        return tf.stack([tf.constant(order.seed, tf.int64), number])

    def prepare(row, image):
        number = row["number"]
        crops = bool(operations) and operations[0].kind == "crop"
        if crops:
            image = operations[0](image, size=shape[:2], channels=shape[2], seed=fold(key_of(number), 0))
        else:
            if image.dtype == tf.string:
                image = preparation.decode(image, preprocessing.channels, scaled_for=scaled_for)
            image = preparation.resize(preprocessing, image)
        for place, operation in enumerate(operations[crops:], start=crops):
            image = operation(image, fold(key_of(number), place))
        # Without a mix, an image is converted while it is in the processor's cache.
        image = convert(preprocessing, dtype, image) if mixer is None else image
        return preparation.in_patches(preprocessing, image)

    def mixed(number, pair):
        images, labels = pair[0], tf.one_hot(pair[1], len(order.source.class_names))
        if order.has_partner:
            rows = images[1:], labels[1:], images[:-1], labels[:-1]
        else:
            rows = images, labels, tf.roll(images, 1, 0), tf.roll(labels, 1, 0)
        images, labels = mixer(*rows, fold(fold(key_of(number), _BATCH), len(operations)))
        return convert(preprocessing, dtype, images), labels

    image_spec = tf.TensorSpec(shape, dtype if mixer is None else "float32")
    dataset = read_batches(order, start_step, prepare, image_spec, unreadable)
    if mixer is not None:
        dataset = dataset.enumerate(start_step).map(mixed)
    if preprocessing.max_tokens is not None:
        dataset = dataset.map(lambda rows, labels: (preparation.as_inputs(preprocessing, rows), labels))
    return finished(dataset, order, start_step)


def finished(dataset, order, start_step):
    """Return the dataset of batches with its length and the options for tf.distribute."""
    options = tf.data.Options()
    options.deterministic = True
    # The autotune thread may delay the end of an iterator by up to a minute, and all parallelism is set explicitly.
    options.autotune.enabled = False
    # The default optimizations find nothing to do here, and take a third of the time until the first batch.
    options.experimental_optimization.apply_default_optimizations = False
    # Not FILE, the first choice of AUTO: each worker reads its part of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    steps = order.steps if order.repeat else max(order.steps - start_step, 0)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    dataset = dataset.prefetch(1).with_options(options)  # only one, because batches may be large
    dataset.steps_per_epoch = max(order.source.size // order.batch_size, 1)  # shown in the error if fit gets none
    dataset.class_names = order.source.class_names  # `fit` makes them the labels of a model without labels
    dataset.rows_per_batch = order.batch_size // order.shard[1]  # the last batch may have fewer
    return dataset


def convert(preprocessing, dtype, images):
    """Convert float32 on [0, 255] to model input: standardised, or rounded to uint8."""
    if dtype == "uint8":
        return tf.cast(tf.clip_by_value(tf.round(images), 0.0, 255.0), tf.uint8)
    return preparation.standardise(preprocessing, images)


def fold(key, data):
    return tf.random.experimental.stateless_fold_in(key, data)


def check_passes(size, batch_size, seed, start_step, shuffle, repeat, drop_remainder):
    """Check the arguments that the pipelines for training share; `size` is the number of images."""
    checks.check_integer("seed", seed, minimum=0)
    checks.check_integer("start_step", start_step, minimum=0)
    for name, flag in (("shuffle", shuffle), ("repeat", repeat), ("drop_remainder", drop_remainder)):
        checks.check_flag(name, flag)
    if drop_remainder and not repeat and batch_size > size:
        raise ValueError(f"batch_size must be at most {size}, the images, with drop_remainder=True; got {batch_size}")


def check(source, preprocessing, batch_size, shard=(0, 1), dtype="float32"):
    """Check the arguments that the pipelines share."""
    expected = "an ImageSource, such as keras_vit.data.from_directory(...)"
    checks.check_instance("source", source, ImageSource, expected)
    if source.size < 1:
        raise ValueError("source must contain at least one image; it is empty")
    preparation.check(preprocessing)
    if preprocessing.channels not in (1, 3) and source.dataset.element_spec["image"].dtype == tf.string:
        preparation.decode(None, preprocessing.channels)  # says that files have other channels
    checks.check_integer("batch_size", batch_size)
    checks.check_choice("dtype", dtype, DTYPES[:1] if preprocessing.max_tokens else DTYPES)
    is_pair = isinstance(shard, (tuple, list)) and [type(part) for part in shard] == [int, int]
    if not is_pair or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard must be integers (index, count), index from 0 to count - 1; got shard={shard!r}")
    if batch_size % shard[1]:
        raise ValueError(f"batch_size must be divisible by the count of shard; got {batch_size} and shard={shard}")
