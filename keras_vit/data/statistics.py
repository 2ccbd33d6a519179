"""measured_preprocessing: the mean and standard deviation of each channel of one's own images."""

import numpy as np

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data.pipeline import eval_batches
from keras_vit.data.sources import ImageSource

_BATCH = 32


def measured_preprocessing(
    source: ImageSource, preprocessing: Preprocessing, images: int = 2000, seed: int = 0, max_corrupt: float = 0.01
) -> Preprocessing:
    """Return a preprocessing with the mean and std of one's own images.

    They are those of all pixels, resized as `preprocessing` states, of some images that are drawn at random. Set
    `model.preprocessing` to the result to save it with the model.

    Args:
        source: an `ImageSource`.
        preprocessing: a `Preprocessing`; the result has its size and its rule of resizing.
        images: number of images at most; a source without lookup gives its first ones.
        seed: seed of the draw.
        max_corrupt: maximum share of unreadable images among those drawn, in [0, 1]; they are left out.

    Returns:
        `preprocessing` with another `mean` and `std`: one number per channel, for pixel values in [0, 1].

    Raises:
        TypeError: if `source` is not an `ImageSource` or `preprocessing` not a `Preprocessing`.
        ValueError: if an argument is out of range, too many images cannot be read or a channel has one value only.
    """
    checks.check_instance("source", source, ImageSource, "an ImageSource")
    checks.check_instance("preprocessing", preprocessing, Preprocessing, "a Preprocessing")
    channels, sampled = preprocessing.channels, source.sample(checks.check_integer("images", images), seed)
    fixed = preprocessing.at(preprocessing.image_size)
    unchanged = fixed.replace(mean=(0.0,) * channels, std=(1.0,) * channels, in_model=False)  # values in [0, 1]
    counts, sums, squares = 0, np.zeros(channels), np.zeros(channels)
    for batch, _ in eval_batches(sampled, unchanged, _BATCH, max_corrupt):
        pixels = batch.reshape(-1, channels).astype("float64")
        counts, sums, squares = counts + len(pixels), sums + pixels.sum(0), squares + np.square(pixels).sum(0)
    mean, powers = sums / max(counts, 1), squares / max(counts, 1)
    std = np.sqrt(np.maximum(powers - mean**2, 0.0))
    if std.min() < 1e-6:
        raise ValueError(
            f"images must differ in each channel; channel {std.argmin()} is {mean[std.argmin()]:g} everywhere "
            "(set mean and std of the preprocessing yourself)"
        )
    return preprocessing.replace(mean=tuple(mean.tolist()), std=tuple(std.tolist()))
