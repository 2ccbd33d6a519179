"""Converting images (paths, file bytes, PIL images, arrays) to one batch of model input."""

import collections.abc
import dataclasses
import os
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import PIL.Image
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data import arrays, encoded
from keras_vit.data import preprocessing as ops
from keras_vit.typing import PathLike, SupportsArray

# an image, or a list or tuple of images; an array may contain several
_Image: TypeAlias = PathLike | bytes | PIL.Image.Image | SupportsArray
Images: TypeAlias = _Image | Sequence[_Image]


@dataclasses.dataclass(frozen=True)
class Image:
    """One image that is not read yet.

    Attributes:
        name: its name in messages: its path, or its place in the list.
        read: function of `channels` (1 or 3, used to decode an encoded image) that returns the pixels
            (height, width, 1, 3 or 4 channels), uint8 or float32 on [0, 255].
    """

    name: str
    read: collections.abc.Callable


def preprocess(
    images: Images, preprocessing: Preprocessing, value_range: tuple[float, float] | None = None
) -> np.ndarray:
    """Convert images to model input.

    Args:
        images: a path, the bytes of an encoded file, a `PIL.Image.Image`, an array (height, width), (height, width,
            channels) or (images, height, width, channels), or a list or tuple of any of these except arrays of rank 4.
            Arrays are NumPy arrays or anything that `np.asarray` accepts (TensorFlow, JAX), with 1, 3 or 4 channels;
            a fourth channel, alpha, is dropped. The EXIF orientation of JPEG, PNG and WebP files and of PIL images is
            applied, as in browsers; the official code ignores it.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        value_range: darkest and brightest value of the arrays in `images`, such as `(0, 255)`. None uses the range of
            the dtype for unsigned integers (uint8: 0 to 255) and `(0, 1)` for floats; signed integers need a range.

    Returns:
        float32 NumPy array (images, *preprocessing.image_size, preprocessing.channels).

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: on values outside their range, NaN, another shape, a file or bytes that are damaged or not an
            image, or an image of more than 178 megapixels; the message names the image.
        TypeError: on an object that is not an image.
    """
    ops.check(preprocessing)
    return stack(as_images(images, value_range), preprocessing)


def as_images(images, value_range=None):
    """Return `images` (see `preprocess`) as a list of `Image`s, checked as far as possible without opening files."""
    is_list = isinstance(images, (list, tuple))
    if is_list and not images:
        raise ValueError(f"images must contain at least one image; got {images!r}")
    has_arrays = any(_kind(image) is None for image in (images if is_list else [images]))
    if value_range is not None and not has_arrays:
        raise ValueError(
            "value_range is for arrays, and there is none: files and PIL images have a known range; "
            f"got value_range={value_range!r}"
        )
    if is_list:
        return [_listed(f"images[{place}]", image, value_range) for place, image in enumerate(images)]
    if _kind(images) is None:
        return _from_array("images", images, value_range, ranks=(2, 3, 4))
    return [_listed("images", images, value_range)]


def stack(images, preprocessing):
    """Read and preprocess `Image`s: float32 (images, height, width, channels)."""
    with tf.device("CPU"):
        done = [ops.apply(preprocessing, image.read(preprocessing.channels)) for image in images]
    return np.stack([np.asarray(image) for image in done])


def _from_path(name, path):
    name = os.fspath(path)
    encoded.check_file(path)
    return Image(name, lambda channels: encoded.decode(name, encoded.read_file(path), channels))


def _from_bytes(name, contents):
    return Image(name, lambda channels: encoded.decode(name, bytes(contents), channels))


def _from_pil(name, image):
    return Image(name, lambda channels: encoded.from_pil(name, image))


_KINDS = (
    ((str, os.PathLike), _from_path),
    ((bytes, bytearray, memoryview), _from_bytes),
    ((PIL.Image.Image,), _from_pil),
)


def _kind(image):
    """Return the function that makes an `Image` of `image`, None for arrays."""
    return next((function for types, function in _KINDS if isinstance(image, types)), None)


def _listed(name, image, value_range):
    if isinstance(image, (list, tuple)):
        raise TypeError(
            f"{name} must be a path, the bytes of a file, a PIL image or an array; got a {type(image).__name__}"
        )
    function = _kind(image)
    return function(name, image) if function else _from_array(name, image, value_range, ranks=(2, 3))[0]


def _from_array(name, array, value_range, ranks):
    array, value_range = arrays.check(name, array, value_range, ranks)
    if array.ndim < 4:
        return [Image(name, lambda channels: arrays.to_levels(array, value_range))]
    return [
        Image(f"{name}[{place}]", lambda channels, image=image: arrays.to_levels(image, value_range))
        for place, image in enumerate(array)
    ]
