"""Images from paths, bytes of files, PIL images and arrays: pixels, and one batch of model input.

Damaged and too large images raise errors.
"""

import collections.abc
import contextlib
import dataclasses
import io
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from keras_vit.config import Preprocessing
from keras_vit.data import arrays, headers
from keras_vit.data import preprocessing as ops
from keras_vit.typing import PathLike, SupportsArray

_FORMATS = "JPEG, PNG, BMP, GIF, WebP (not animated)"
_READABLE = ("JPEG", "MPO", "PNG", "BMP", "GIF", "WEBP")  # Pillow's names; MPO: a JPEG followed by more images
_GREY_MODES = ("1", "L", "LA", "La")

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
    named = [(f"images[{place}]", image) for place, image in enumerate(images)] if is_list else [("images", images)]
    found = [_no_array(name, image) for name, image in named]
    if value_range is not None and None not in found:
        raise ValueError(
            "value_range is for arrays, and there is none: files and PIL images have a known range; "
            f"got value_range={value_range!r}"
        )
    listed = []
    for (name, image), one in zip(named, found, strict=True):
        listed += _from_array(name, image, value_range, is_list) if one is None else [one]
    return listed


def stack(images, preprocessing):
    """Read and preprocess `Image`s: float32 (images, height, width, channels)."""
    with tf.device("CPU"):
        done = [ops.apply(preprocessing, image.read(preprocessing.channels)) for image in images]
    return np.stack([np.asarray(image) for image in done])


def check_file(path):
    """Raise unless `path` is an existing file."""
    if os.path.isdir(path):
        raise ValueError(
            f"{os.fspath(path)} is a folder, not an image: pass its files, or use keras_vit.data.from_directory"
        )
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no image file {os.fspath(path)}")


def decode(name, contents, channels):
    """Decode the bytes of a file to uint8 (height, width, channels) with `ops.decode`.

    Raises:
        ValueError: on bytes that are not an image, a damaged image, or more than `headers.MAX_PIXELS` pixels; the
            message begins with `name`.
    """
    image_format = _check_header(name, contents)
    try:
        image = ops.decode(tf.constant(contents), channels)
    except tf.errors.OpError:
        if image_format not in _READABLE:
            raise ValueError(
                f"{name} must be one of {_FORMATS}; it is {image_format}: "
                "open it with PIL.Image.open and pass the image instead"
            ) from None
        raise ValueError(
            f"{name} must be a complete image of one of {_FORMATS}; it begins as {image_format} "
            f"but is truncated, damaged or of an unsupported kind ({len(contents)} bytes, {_beginning(contents)})"
        ) from None
    _check_sides(name, *image.shape[:2])
    return image


def from_pil(name, image):
    """Return the upright pixels of a PIL image: uint8 (height, width, 1 or 3), or float32 on [0, 255] for 16 bits."""
    _check_sides(name, *reversed(image.size))
    if image.mode in ("I", "F"):
        raise ValueError(
            f"{name} must be a PIL image with a known value range; mode {image.mode!r} has none: "
            "pass numpy.asarray(image) with value_range=(darkest, brightest)"
        )
    try:
        image = _upright(image)
        if image.mode.startswith("I;16"):
            return (np.asarray(image).astype(np.float32) / 257.0)[..., None]
        if image.mode in ("RGB", "RGBA"):  # avoids a copy of all pixels
            return np.asarray(image)[..., :3]
        pixels = np.asarray(image.convert("L" if image.mode in _GREY_MODES else "RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{name} must be a PIL image that can be read; {error}") from None
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _no_array(name, image):
    """Return the `Image` of a path, the bytes of a file or a PIL image; None for anything else, an array."""
    if isinstance(image, (str, os.PathLike)):
        check_file(image)
        name = os.fspath(image)
        return Image(name, lambda channels: decode(name, pathlib.Path(image).read_bytes(), channels))
    if isinstance(image, (bytes, bytearray, memoryview)):
        return Image(name, lambda channels: decode(name, bytes(image), channels))
    if isinstance(image, PIL.Image.Image):
        return Image(name, lambda channels: from_pil(name, image))
    if isinstance(image, (list, tuple)):
        raise TypeError(
            f"{name} must be a path, the bytes of a file, a PIL image or an array; got a {type(image).__name__}"
        )
    return None


def _from_array(name, array, value_range, is_in_list):
    array, value_range = arrays.check(name, array, value_range, (2, 3) if is_in_list else (2, 3, 4))
    named = [(f"{name}[{place}]", image) for place, image in enumerate(array)] if array.ndim == 4 else [(name, array)]
    return [Image(name, lambda channels, image=image: arrays.to_levels(image, value_range)) for name, image in named]


def _upright(image):
    image.load()
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # damaged EXIF does not make an image unreadable
        warnings.simplefilter("ignore")
        if image.getexif().get(PIL.ExifTags.Base.Orientation, 1) != 1:
            return PIL.ImageOps.exif_transpose(image)
    return image


def _check_header(name, contents):
    """Return the name of the format after checking the header and the number of pixels."""
    if not contents:
        raise ValueError(f"{name} must be an image ({_FORMATS}); it is empty (0 bytes)")
    if contents[:4] == b"RIFF":  # WebP: Pillow allocates the pixels of an animated one when it opens it
        width, height = headers.header_sides(tf.constant(contents)).numpy()
        _check_sides(name, height or 1, width or 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, and about damage outside the header
            with PIL.Image.open(io.BytesIO(contents)) as header:
                image_format, (width, height) = header.format, header.size
    except PIL.Image.DecompressionBombError as error:
        raise ValueError(f"{name} must have at most {headers.MAX_PIXELS:,} pixels; {error}") from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise ValueError(
            f"{name} must be an image ({_FORMATS}); it is not an image or its header is damaged: "
            f"{len(contents)} bytes, {_beginning(contents)}"
        ) from None
    _check_sides(name, height, width)
    limit = headers.MAX_PIXELS // 3
    if height * width > limit and image_format in ("JPEG", "MPO") and headers.is_progressive(contents):
        _check_sides(name, height, width, limit, " as a progressive JPEG")
    return image_format


def _check_sides(name, height, width, limit=None, of_kind=""):
    limit = headers.MAX_PIXELS if limit is None else limit
    if not height or not width:
        raise ValueError(f"{name} must have a height and a width above 0; got {height} x {width} pixels")
    if height * width > limit:
        raise ValueError(f"{name} must have at most {limit:,} pixels{of_kind}; got {height} x {width} pixels")


def _beginning(contents):
    start = bytes(contents[:12])
    is_text = all(32 <= byte < 127 for byte in start[:4])
    return f"starts with {start.decode('ascii', 'replace').rstrip() if is_text else start.hex(' ')}"
