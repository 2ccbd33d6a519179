"""multi_crop_pipeline: batches of two global and several local crops of each image, for self-distillation."""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data import preprocessing as preparation
from keras_vit.data.augment import parse_augment
from keras_vit.data.batches import read_batches
from keras_vit.data.corrupt import Unreadable
from keras_vit.data.order import Order
from keras_vit.data.pipeline import check, convert, finished, fold
from keras_vit.data.sources import ImageSource
from keras_vit.typing import Size

_COLOURS = ("flip", "color_jitter(0.4, 0.4, 0.2, 0.1, 0.8)", "grayscale(0.2)")
AUGMENT = (
    (*_COLOURS, "gaussian_blur(1.0)"),
    (*_COLOURS, "gaussian_blur(0.1)", "solarize(0.2)"),
    (*_COLOURS, "gaussian_blur(0.5)"),
)
_LEAST_ASPECT = 3 / 4  # of the windows of random_resized_crop


def multi_crop_pipeline(
    source: ImageSource,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    local_crops: int = 8,
    local_size: Size = 96,
    global_area: tuple[float, float] = (0.4, 1.0),
    local_area: tuple[float, float] = (0.05, 0.4),
    augment: Sequence[Sequence[str]] = AUGMENT,
    seed: int = 0,
    start_step: int = 0,
    shard: tuple[int, int] = (0, 1),
    dtype: str = "float32",
    max_corrupt: float = 0.01,
    scaled_decoding: bool = False,
) -> tf.data.Dataset:
    """Return endless, shuffled batches of several crops of each image.

    This is the multi-crop of arXiv 2006.09882, section 3.3. The defaults are those of DINO (arXiv 2104.14294, appendix
    E, and facebookresearch/dino). As in `train_pipeline`, batch n depends only on the arguments and n, and unreadable
    images are replaced. An image is decoded once.

    Args:
        source: an `ImageSource`; its labels are returned, although self-distillation does not use them.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`. Its image size is that of the global crops.
        batch_size: images per batch, over all workers.
        local_crops: number of local crops, 0 or above.
        local_size: size of a local crop in pixels, (height, width) or one integer; divisible by the patch size.
        global_area, local_area: range of the share of the image that a crop covers, see
            `keras_vit.data.augment.crops.random_resized_crop`.
        augment: three sequences of strings, as in `train_pipeline` but without a crop: the operations on the first
            global crop, the second one, and each local one.
        seed: integer, 0 or above.
        start_step, shard, dtype, max_corrupt: as in `train_pipeline`.
        scaled_decoding: whether a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if this leaves at least 1.5 times the
            sides of the smallest crops. Large images take less time and memory; the pixels of the crops differ.

    Returns:
        `tf.data.Dataset` of (dict of `global`, `dtype` (batch, 2, height, width, channels), and `local`, `dtype`
        (batch, local_crops, height, width, channels); int32 labels (batch,)). Without local crops, the dict has no
        `local`. `steps_per_epoch`, an attribute of the dataset, is the number of full batches per pass.

    Raises:
        TypeError: if `source` is not an `ImageSource` or `preprocessing` not a `Preprocessing`.
        ValueError: on an argument out of range, an unknown augmentation or an empty source.
    """
    check(source, preprocessing, batch_size, shard, dtype)
    if preprocessing.max_tokens:
        raise ValueError(
            "preprocessing must give images of one size, not patches of native aspect ratios; got "
            f"max_tokens={preprocessing.max_tokens} (keras_vit.resize(model, size) changes the model)"
        )
    for name, value in {"seed": seed, "start_step": start_step, "local_crops": local_crops}.items():
        checks.check_integer(name, value, minimum=0)
    if len(augment) != 3:
        raise ValueError(f"augment must be three sequences of strings, one per kind of crop; got {len(augment)}")
    channels, local = preprocessing.channels, (local_crops, *checks.check_pair("local_size", local_size))
    shapes = {"global": (2, *preprocessing.image_size, channels), "local": (*local, channels)}
    crops = [f"random_resized_crop({low!r}, {high!r})" for low, high in (global_area, local_area)]

    def view_of(kind):
        """Return the function from pixels and a seed to the values of one crop; it is traced once for all crops."""
        crop, *others = parse_augment((crops[kind > 1], *augment[kind]))

        def view(pixels, key):
            size = shapes["local" if kind > 1 else "global"][1:3]
            image = crop(pixels, size=size, channels=channels, seed=fold(key, 0))
            for step, operation in enumerate(others, start=1):
                image = operation(image, fold(key, step))
            return tf.reshape(convert(preprocessing, dtype, image), [-1])

        return tf.function(view, autograph=False)

    def prepare(row, image):
        """Return the values of all crops of an image, one after another."""
        key = tf.stack([tf.constant(seed, tf.int64), row["number"]])
        if image.dtype == tf.string:
            image = preparation.decode(image, channels, scaled_for=scaled_for)
        return tf.concat([views[min(n, 2)](image, fold(key, n)) for n in range(2 + local_crops)], 0)

    @tf.autograph.experimental.do_not_convert
    def split(rows, labels):
        parts = zip(shapes.items(), tf.split(rows, lengths, axis=1), strict=True)
        return {key: tf.reshape(part, (-1, *shape)) for (key, shape), part in parts if shape[0]}, labels

    scaled_for = None
    if checks.check_flag("scaled_decoding", scaled_decoding):
        # a window of the least area has at least these shares of the sides of the image
        shares = [math.sqrt(area[0] * _LEAST_ASPECT) for area in (global_area, local_area)]
        used = zip(shapes.values(), shares, strict=True)
        scaled_for = Preprocessing(size=max(math.ceil(max(shape[1:3]) / share) for shape, share in used if shape[0]))
    views = [view_of(kind) for kind in range(3)]
    lengths = [math.prod(shape) for shape in shapes.values()]
    order = Order(source, batch_size, seed, shuffle=True, repeat=True, shard=shard)
    unreadable = Unreadable(source, channels, max_corrupt, needed=1)
    dataset = read_batches(order, start_step, prepare, tf.TensorSpec((sum(lengths),), dtype), unreadable)
    return finished(dataset.map(split), order, start_step)
