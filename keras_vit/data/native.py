"""Batches of patches of images in their own aspect ratios: native_batch, native_pipeline, flexible_patches."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data.pipeline import eval_pipeline, train_pipeline
from keras_vit.data.preprocessing import check, sequence, split
from keras_vit.data.sources import ImageSource
from keras_vit.layers.patches import PADDING, patch_resizing
from keras_vit.typing import Size

_DROP = 2_000_003  # separates the random numbers of dropped tokens from those of images
_PATCH_SIZE = 3_000_017  # and those of patch sizes


def native_batch(
    images: Iterable[np.ndarray], patch_size: Size, images_per_sequence: int = 1, length: int | None = None
) -> dict[str, np.ndarray]:
    """Return the patches of prepared images as one batch.

    It is the input of a model for native aspect ratios, see `keras_vit.resize`. `keras_vit.preprocess` with the
    preprocessing of such a model makes it from files and pixels.

    Args:
        images: float arrays (height, width, channels), prepared as the model expects, whose sides `patch_size` divides.
        patch_size: (height, width) of a patch in pixels, or one integer for both.
        images_per_sequence: number of images per sequence, in their order; it must divide the number of images.
        length: number of patches of a sequence, the rest of which is padding; None uses that of the longest.

    Returns:
        `{"patches": float32 (sequences, length, patch height * patch width * channels), "coordinates": int32
        (sequences, length, 5)}`. The coordinates of a patch are its row and column, the rows and columns of the grid of
        its image, and the number of that image in the sequence, from 0; padding has 0, 0, 1, 1 and -1.

    Raises:
        ValueError: if there are no images, their number or sizes do not fit, or a sequence is longer than `length`.
    """
    images, size = [np.asarray(image, np.float32) for image in images], checks.check_pair("patch_size", patch_size)
    count = checks.check_integer("images_per_sequence", images_per_sequence)
    if not images or len(images) % count:
        raise ValueError(f"images must hold a multiple of images_per_sequence={count}, not 0; got {len(images)}")
    for place, image in enumerate(images):
        if image.ndim != 3 or image.shape[2] != images[0].shape[2] or 0 in image.shape:
            raise ValueError(
                f"images[{place}] must be (height, width, {images[0].shape[-1]}), no side 0; got {image.shape}"
            )
        checks.check_divisible(f"the sides of images[{place}]", image.shape[:2], "patch_size", size)
    lengths = [image.shape[0] * image.shape[1] // (size[0] * size[1]) for image in images]
    totals = np.sum(np.reshape(lengths, (-1, count)), axis=1)
    length = int(totals.max()) if length is None else checks.check_integer("length", length)
    if totals.max() > length:
        raise ValueError(f"length must be at least {totals.max()}, the patches of the longest sequence; got {length}")
    with tf.device("CPU"):
        rows = tf.stack([sequence(image, size, max(lengths)) for image in images])
        batch = _shortened(_joined(split(rows), tf.reshape(tf.range(len(images)), (-1, count))), length)
    return {name: values.numpy() for name, values in batch.items()}


def native_pipeline(
    source: ImageSource,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    buckets: Sequence[int] | None = None,
    images_per_sequence: int = 1,
    drop_rate: float = 0.0,
    training: bool = False,
    **arguments: Any,
) -> tf.data.Dataset:
    """Return batches of patches of images in their own aspect ratios.

    They have a few fixed lengths. As in the other pipelines, batch n depends only on the arguments and n.

    Args:
        source: an `ImageSource`.
        preprocessing: a `Preprocessing` with `patch_size` and `max_tokens`, such as that of `keras_vit.resize(model,
            "native")`.
        batch_size: images per batch, over all workers.
        buckets: ascending lengths of sequences; each batch has the shortest that holds all of its sequences. None is
            one bucket of images_per_sequence * `max_tokens`. The last bucket must be at least that long.
        images_per_sequence: number of images that are packed into one sequence (NaViT, arXiv 2307.06304, section 2.1);
            it must divide `batch_size`. The images of a batch are combined such that long ones share a sequence with
            short ones. Above 1, training only, with labels (sequences, images_per_sequence).
        drop_rate: share of the patches of each image that is dropped at random in training, in [0, 1) (section 2.2); at
            least one patch remains.
        training: whether the batches are those of `train_pipeline`; False gives those of `eval_pipeline`.
        **arguments: other arguments of that pipeline. Augmentations may not crop, and images are not mixed.

    Returns:
        `tf.data.Dataset` of ({"patches": float32 (sequences, length, width), "coordinates": int32 (sequences, length,
        5)}, int32 (images,)).

    Raises:
        TypeError, ValueError: as these pipelines, and if a value is out of range or arguments contradict each other.
    """
    count = checks.check_integer("images_per_sequence", images_per_sequence)
    rate, training = checks.check_rate("drop_rate", drop_rate), checks.check_flag("training", training)
    max_tokens = check(preprocessing).max_tokens
    if max_tokens is None:
        raise ValueError(
            f"preprocessing must have patch_size and max_tokens (Preprocessing.native); got {preprocessing}"
        )
    if (count > 1 or rate) and not training:
        raise ValueError(f"images_per_sequence={count} and drop_rate={rate} need training=True; got training=False")
    longest = count * max_tokens
    buckets = checks.check_integers("buckets", (longest,) if buckets is None else buckets)
    if list(buckets) != sorted(set(buckets)) or buckets[-1] < longest:
        raise ValueError(f"buckets must ascend to images_per_sequence * max_tokens = {longest} or more; got {buckets}")
    batches = (train_pipeline if training else eval_pipeline)(source, preprocessing, batch_size, **arguments)
    shard, shards = arguments.get("shard", (0, 1))
    rows = batch_size // shards
    if rows % count or (count > 1 and not arguments.get("drop_remainder", True)):
        raise ValueError(
            f"images_per_sequence={count} must divide the images of each batch (drop_remainder=True); got {rows}"
        )
    seed = tf.constant(arguments.get("seed", 0), tf.int64)

    @tf.autograph.experimental.do_not_convert
    def finish(number, batch):
        sequences, labels = batch
        if rate:
            scores = tf.random.stateless_uniform((batch_size, max_tokens), tf.stack([seed + _DROP, number]))
            sequences = _dropped(sequences, rate, scores[shard * rows :])
        if count > 1:
            members = _balanced(_lengths(sequences), count)
            sequences, labels = _joined(sequences, members), tf.gather(labels, members)
        longest = tf.reduce_max(tf.concat([_lengths(sequences), [1]], 0))
        return _shortened(sequences, tf.reduce_min(tf.boolean_mask(buckets, buckets >= longest))), labels

    finished = batches.enumerate(arguments.get("start_step", 0)).map(finish).prefetch(1).with_options(batches.options())
    finished.steps_per_epoch, finished.class_names = batches.steps_per_epoch, batches.class_names
    return finished


def flexible_patches(
    dataset: tf.data.Dataset,
    patch_sizes: Sequence[int],
    kernel_size: Size,
    seed: int = 0,
    start_step: int = 0,
    keep_images: bool = False,
) -> tf.data.Dataset:
    """Draw a patch size per batch, as FlexiViT does (arXiv 2212.08013, section 3.2).

    The patches of this size are resized to those of the kernel. The kernel gives the same tokens for them as a kernel
    resized to the drawn size gives for the original patches (`keras_vit.layers.embedding.patch_resizing`). Train
    `keras_vit.resize(model.with_patch_size(kernel_size), 'any')` on them.

    Args:
        dataset: batches of (images (batch, height, width, channels), labels), such as those of `train_pipeline`.
        patch_sizes: patch sizes in pixels, each dividing height and width. Published for 240 pixels: 8, 10, 12, 15, 16,
            20, 24, 30, 40, 48, with equal probability.
        kernel_size: (height, width) of the model's kernel in pixels, or one integer for both.
        seed: integer, 0 or above.
        start_step: number of the first batch, 0 or above; batch n depends on `seed` and n alone.
        keep_images: whether the inputs are a dict of these `images` and the original `teacher_images`, for a
            `Distiller` with a teacher of the original size.

    Returns:
        `tf.data.Dataset` of (float32 (batch, rows * kernel height, columns * kernel width, channels), labels), where
        rows and columns are those of the grid of the drawn patch size.

    Raises:
        ValueError: if a value is out of range or a patch size does not divide the images.
    """
    checks.check_flag("keep_images", keep_images)
    sizes, kernel = checks.check_integers("patch_sizes", patch_sizes), checks.check_pair("kernel_size", kernel_size)
    key = tf.constant(checks.check_integer("seed", seed, minimum=0) + _PATCH_SIZE, tf.int64)
    spec: Any = dataset.element_spec[0] if isinstance(dataset.element_spec, tuple) else tf.TensorSpec(())
    if not sizes or len(getattr(spec, "shape", ())) != 4 or None in spec.shape[1:] or spec.dtype != tf.float32:
        raise ValueError(
            "dataset must have batches (float32 images of one size, labels), and patch_sizes at least one; got "
            f"{dataset.element_spec} and patch_sizes={sizes}"
        )
    sides = tuple(spec.shape[1:3])
    for size in sizes:
        checks.check_divisible("the sides of the images", sides, "patch_sizes", (size, size))
    resizings = {size: [patch_resizing(side, size).T.astype("float32") for side in kernel] for size in sizes}

    def resized(images, size):
        rows, columns = (side // size for side in sides)
        patches = tf.reshape(images, (-1, rows, size, columns, size, images.shape[-1]))
        patches = tf.einsum("hy,brycxd,wx->brhcwd", resizings[size][0], patches, resizings[size][1])
        return tf.reshape(patches, (-1, rows * kernel[0], columns * kernel[1], images.shape[-1]))

    @tf.autograph.experimental.do_not_convert
    def draw(number, batch):
        images, *labels = batch
        place = tf.random.stateless_uniform((), tf.stack([key, number]), maxval=len(sizes), dtype=tf.int32)
        branches = [lambda size=size: resized(images, size) for size in sizes]
        flexible = tf.ensure_shape(tf.switch_case(place, branches), (None, None, None, images.shape[-1]))
        return {"images": flexible, "teacher_images": images} if keep_images else flexible, *labels

    drawn = dataset.enumerate(checks.check_integer("start_step", start_step, minimum=0)).map(draw).prefetch(1)
    drawn.steps_per_epoch, drawn.class_names = (getattr(dataset, x, None) for x in ("steps_per_epoch", "class_names"))
    return drawn


def _lengths(sequences):
    """Return the number of patches of each sequence, without padding."""
    return tf.reduce_sum(tf.cast(sequences["coordinates"][..., 4] >= 0, tf.int32), axis=1)


def _shortened(sequences, length):
    """Move padding to the end of each sequence, and cut or pad all of them to this length."""
    is_padding = sequences["coordinates"][..., 4] < 0
    order = tf.argsort(tf.cast(is_padding, tf.int32), axis=1, stable=True)[:, :length]
    missing = [[0, 0], [0, tf.maximum(length - tf.shape(order)[1], 0)]]
    patches, coordinates = (tf.gather(sequences[name], order, batch_dims=1) for name in ("patches", "coordinates"))
    coordinates = tf.pad(coordinates - PADDING, [*missing, [0, 0]]) + PADDING
    return {"patches": tf.pad(patches, [*missing, [0, 0]]), "coordinates": coordinates}


def _dropped(sequences, rate, scores):
    """Turn a share of the patches of each image into padding, those with the highest random scores."""
    coordinates = sequences["coordinates"]
    is_patch, lengths = coordinates[..., 4] >= 0, tf.cast(_lengths(sequences), tf.float32)
    kept = tf.maximum(tf.cast(tf.round(lengths * (1.0 - rate)), tf.int32), 1)
    scores = tf.where(is_patch, scores[: tf.shape(is_patch)[0]], 2.0)
    ranks = tf.argsort(tf.argsort(scores, axis=1, stable=True), axis=1, stable=True)
    is_kept = (is_patch & (ranks < kept[:, None]))[..., None]
    patches = tf.where(is_kept, sequences["patches"], 0.0)
    return {"patches": patches, "coordinates": tf.where(is_kept, coordinates, tf.constant(PADDING))}


def _balanced(lengths, count):
    """Return which images share a sequence, (sequences, count): by length, alternately forwards and backwards."""
    order = tf.reshape(tf.argsort(lengths, direction="DESCENDING", stable=True), (count, -1))
    return tf.transpose(tf.stack([row[::-1] if n % 2 else row for n, row in enumerate(tf.unstack(order, count))]))


def _joined(sequences, members):
    """Return sequences that hold the images `members`, (sequences, images), one after another."""
    # (sequences, images, length, ...)
    patches, coordinates = (tf.gather(sequences[name], members) for name in ("patches", "coordinates"))
    image = tf.where(coordinates[..., 4] >= 0, tf.range(tf.shape(members)[1])[:, None], PADDING[4])
    joined = {"patches": patches, "coordinates": tf.concat([coordinates[..., :4], image[..., None]], axis=-1)}
    return {name: tf.reshape(x, (tf.shape(members)[0], -1, x.shape[-1])) for name, x in joined.items()}
