"""Read images from paths, bytes of files, PIL images and arrays, and prepare them as one batch of model input.

Damaged images and images with too many pixels raise errors.
"""

import contextlib
import io
import math
import numbers
import os
import pathlib
import re
import warnings
from collections.abc import Sequence
from typing import BinaryIO, TypeAlias

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from keras_vit.checks import shortened
from keras_vit.config import Preprocessing
from keras_vit.data import headers
from keras_vit.data import preprocessing as preparation
from keras_vit.files import check_regular
from keras_vit.typing import PathLike, SupportsArray

_FORMATS = "JPEG, PNG, BMP, GIF, WebP (not animated)"
_READABLE = ("JPEG", "MPO", "PNG", "BMP", "GIF", "WEBP")  # Pillow's names; MPO: a JPEG followed by more images
_GREY_MODES = ("1", "L", "LA", "La")
_TOLERANCE = 1e-4  # share of the range: float32 resampling produces values such as 1.0000001, which are clipped

# an image, or a list or tuple of images; an array may contain several
_Image: TypeAlias = PathLike | bytes | BinaryIO | PIL.Image.Image | SupportsArray
Images: TypeAlias = _Image | Sequence[_Image]


def preprocess(
    images: Images, preprocessing: Preprocessing, value_range: tuple[float, float] | None = None
) -> np.ndarray:
    """Convert images to model input.

    Args:
        images: a path, the bytes of an encoded file, a file opened in binary mode, a `PIL.Image.Image`, an array
            (height, width), (height, width, channels) or (images, height, width, channels), or a list or tuple of any
            of these except arrays of rank 4. Addresses are not downloaded. Arrays are NumPy arrays or anything that
            `np.asarray` accepts (TensorFlow, JAX), with the channels of the model, or 1, 3 or 4 for a model of 1 or 3:
            a fourth channel, alpha, is dropped. The EXIF orientation of JPEG, PNG and WebP files and of PIL images is
            applied, as in browsers; the official code ignores it.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        value_range: darkest and brightest value of the arrays in `images`, such as `(0, 255)`. None uses the range of
            the dtype for unsigned integers (uint8: 0 to 255) and `(0, 1)` for floats; signed integers need a range.

    Returns:
        float32 NumPy array (images, *preprocessing.image_size, preprocessing.channels). With the preprocessing of a
        model for native aspect ratios, a dict of patches and coordinates, see `keras_vit.resize`.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: on values outside their range, NaN, another shape, a file or bytes that are damaged or not an image,
            or an image of more than 178,956,970 pixels; the message names the image.
        TypeError: on an object that is not an image.
    """
    preparation.check(preprocessing)
    return stack(as_images(images, value_range), preprocessing)


def as_images(images, value_range=None):
    """Return a list of functions that read `images` (see `preprocess`).

    The images are checked here, except for the contents of files, which are opened later. A function maps `channels` (1
    or 3, used to decode an encoded image) to the pixels (height, width, 1, 3 or 4 channels), uint8 or float32 on
    [0, 255].
    """
    is_list = isinstance(images, (list, tuple))
    if is_list and not images:
        raise ValueError(f"images must contain at least one image; got {images!r}")
    named = [(f"images[{place}]", image) for place, image in enumerate(images)] if is_list else [("images", images)]
    found = [_no_array(name, image) for name, image in named]
    if value_range is not None and None not in found:
        raise ValueError(f"value_range must be None for files and PIL images; got value_range={value_range!r}")
    listed = []
    for (name, image), one in zip(named, found, strict=True):
        listed += _from_array(name, image, value_range, is_list) if one is None else [one]
    return listed


def stack(images, preprocessing):
    """Read and preprocess the result of `as_images`, see `preprocess`."""
    with tf.device("CPU"):
        done = [preparation.apply(preprocessing, read(preprocessing.channels)) for read in images]
    rows = np.stack([np.asarray(image) for image in done])
    return tf.nest.map_structure(np.asarray, preparation.as_inputs(preprocessing, rows))


def check_file(path):
    """Raise unless `path` is an existing file."""
    if re.match(r"(?i)[a-z][a-z0-9+.-]+:/", os.fspath(path)) and not os.path.exists(path):
        raise FileNotFoundError(
            f"{os.fspath(path)} is an address, and images are not downloaded: pass a local file, or the bytes that "
            "urllib.request.urlopen(address).read() returns"
        )
    if os.path.isdir(path):
        raise ValueError(
            f"{os.fspath(path)} is a folder, not an image: pass files, or use keras_vit.data.from_directory"
        )
    if not os.path.exists(check_regular(path)):
        raise FileNotFoundError(f"there is no image file {shortened(os.fspath(path))}")


def decode(name, contents, channels):
    """Decode the bytes of a file to uint8 (height, width, channels) with `preparation.decode`.

    Raises:
        ValueError: on bytes that are not an image, a damaged image, or more than `headers.MAX_PIXELS` pixels; the
            message begins with `name`.
    """
    try:
        image = preparation.decode(tf.constant(contents), channels)
    except tf.errors.OpError as error:
        raise ValueError(f"{name} must {_unmet(contents, error.message)}") from None
    _check_sides(name, *image.shape[:2])
    return image


def from_pil(name, image):
    """Return the upright pixels of a PIL image: uint8 (height, width, 1 or 3), or float32 on [0, 255] for 16 bits."""
    _check_sides(name, *reversed(image.size))
    if image.mode in ("I", "F"):
        raise ValueError(f"{name} has mode {image.mode!r} of no known range: pass numpy.asarray(image) and value_range")
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


def check_array(name, array, value_range, ranks):
    """Return `array` (as NumPy) and its range (low, high) after checking shape and values.

    Raises:
        TypeError: if it does not contain numbers.
        ValueError: on a rank that is not in `ranks`, sides of 0, channels before the height, NaN or infinity, and
            values outside `value_range`; if that is None, outside the range of the dtype.
    """
    array = _numeric(name, array)
    check_shape(name, array.shape, ranks)
    low, high = _range_of(name, array.dtype, value_range)
    # Checking only the extremes finds NaN and infinity too, and does not copy a large batch.
    least, greatest = float(array.min()), float(array.max())
    if not (math.isfinite(least) and math.isfinite(greatest)):
        raise ValueError(f"{name} must contain finite values; it contains NaN or infinity")
    slack = _TOLERANCE * (high - low)
    if least < low - slack or greatest > high + slack:
        raise ValueError(
            f"{name} must have values from {low:g} to {high:g}; they range from {least:g} to {greatest:g}"
            f"{_advice(array.dtype, least, greatest)}"
        )
    if array.dtype.kind == "f" and (low, high) == (0, 255) and 0 <= least < greatest <= 1:
        raise ValueError(
            f"{name} must have values from 0 to 255 for this value_range; they range from {least:g} to "
            f"{greatest:g} and are probably scaled already: omit value_range"
        )
    if value_range is None and high > 255 and 0 < greatest <= 255:
        raise ValueError(
            f"{name} must have values from 0 to {high} for {array.dtype}; they range from {least:g} to {greatest:g}: "
            f"pass value_range=(0, 255) if they have 8 bits, or value_range=(0, {high}) if the images are this dark"
        )
    return array, (low, high)


def to_levels(array, value_range):
    """Return an image of rank 2 or 3 as (height, width, channels) on [0, 255]: uint8 unchanged, else float32."""
    array = array[..., None] if array.ndim == 2 else array
    low, high = value_range
    if array.dtype == np.uint8 and (low, high) == (0, 255):
        return array
    levels = (array.astype(np.float32) - np.float32(low)) * np.float32(255.0 / (high - low))
    return np.clip(levels, 0.0, 255.0)


def check_shape(name, shape, ranks):
    """Raise a `ValueError` unless an array of this shape holds one image (rank 2 or 3) or several (rank 4)."""
    forms = {2: "(height, width)", 3: "(height, width, channels)", 4: "(images, height, width, channels)"}
    if len(shape) not in ranks:
        raise ValueError(f"{name} must have shape {' or '.join(forms[rank] for rank in ranks)}; got {shape}")
    if 0 in shape:
        raise ValueError(f"{name} must have no side of length 0; got shape {shape}")
    is_last = len(shape) == 2 or shape[-1] in (1, 3, 4)
    if not is_last and shape[-3] in (1, 3, 4) and shape[-3] < min(shape[-2:]):
        raise ValueError(f"{name} must have its channels on the last axis, not before the height; got shape {shape}")


def _no_array(name, image):
    """Return the function that reads a path, the bytes of a file or a PIL image; None for anything else (arrays)."""
    if isinstance(image, (str, os.PathLike)):
        check_file(image)
        name = os.fspath(image)
        return lambda channels: decode(name, pathlib.Path(image).read_bytes(), channels)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return lambda channels: decode(name, bytes(image), channels)
    if isinstance(image, PIL.Image.Image):
        return lambda channels: from_pil(name, image)
    if hasattr(image, "read"):
        return lambda channels: decode(name, _contents(name, image), channels)
    if isinstance(image, (list, tuple)):
        raise TypeError(f"{name} must be a path, bytes, a PIL image or an array; got a {type(image).__name__}")
    return None


def _contents(name, file):
    """Return the bytes of an open file from its start, as Pillow reads it."""
    if getattr(file, "seekable", bool)():
        file.seek(0)
    contents = file.read()
    if not isinstance(contents, (bytes, bytearray)):
        raise TypeError(f"{name} must be a file opened in binary mode; read() returns {type(contents).__name__}")
    return contents


def _from_array(name, array, value_range, is_in_list):
    array, value_range = check_array(name, array, value_range, (2, 3) if is_in_list else (2, 3, 4))
    listed = array if array.ndim == 4 else [array]
    return [lambda channels, image=image: to_levels(image, value_range) for image in listed]


def _upright(image):
    image.load()
    with warnings.catch_warnings(), contextlib.suppress(Exception):  # damaged EXIF does not make an image unreadable
        warnings.simplefilter("ignore")
        if image.getexif().get(PIL.ExifTags.Base.Orientation, 1) != 1:
            return PIL.ImageOps.exif_transpose(image)
    return image


def _unmet(contents, message):
    """Return the requirement that a file does not meet, for a message; `message` is that of the decoder."""
    limit = re.search(r"(have at most .*; got)\W+(\d+) (\d+)\]", message)
    if limit:
        return f"{limit[1]} {limit[2]} x {limit[3]} pixels"
    if not contents:
        return f"be an image ({_FORMATS}); it is empty (0 bytes)"
    is_text = all(32 <= byte < 127 for byte in contents[:4])
    start = contents[:12].decode("ascii", "replace").rstrip() if is_text else contents[:12].hex(" ")
    found = f"{len(contents)} bytes, starts with {start}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, and about damage outside the header
            with PIL.Image.open(io.BytesIO(contents)) as header:
                image_format = header.format
    except (OSError, SyntaxError, ValueError, EOFError, PIL.Image.DecompressionBombError):
        return f"be an image ({_FORMATS}); it is not an image or its header is damaged: {found}"
    if image_format not in _READABLE:
        return f"be one of {_FORMATS}; it is {image_format}: open it with PIL.Image.open and pass the image instead"
    return (
        f"be a complete image of one of {_FORMATS}; it begins as {image_format} but is truncated, damaged or of an "
        f"unsupported kind ({found})"
    )


def _check_sides(name, height, width):
    if not height or not width:
        raise ValueError(f"{name} must have a height and a width above 0; got {height} x {width} pixels")
    if height * width > headers.MAX_PIXELS:
        raise ValueError(f"{name} must have at most {headers.MAX_PIXELS:,} pixels; got {height} x {width} pixels")


def _numeric(name, array):
    given = type(array)
    try:
        array = np.asarray(array)
    except Exception:  # whatever the exception, the object is not an array
        array = np.empty((), object)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind == "b":
        raise TypeError(f"{name} must contain numbers; got bool: convert with mask.astype('uint8') * 255")
    if array.dtype.kind not in "uif":
        raise TypeError(f"{name} must be a path, bytes, a PIL image or an array of numbers; got {given.__qualname__}")
    return array


def _range_of(name, dtype, value_range):
    if value_range is not None:
        pair = tuple(value_range) if isinstance(value_range, (tuple, list)) else ()
        is_pair = len(pair) == 2 and all(isinstance(v, numbers.Real) and math.isfinite(v) for v in pair)
        if not is_pair or pair[0] >= pair[1]:
            raise ValueError(f"value_range must be None or (darkest, brightest), such as (0, 255); got {value_range!r}")
        return pair
    if dtype.kind == "i":
        raise ValueError(
            f"{name} must be uint8, uint16 or float, or come with value_range=(darkest, brightest); got {dtype}"
        )
    return (0, np.iinfo(dtype).max) if dtype.kind == "u" else (0, 1)


def _advice(dtype, least, greatest):
    ranges = ((0, 1), (0, 255), (-1, 1)) if dtype.kind == "f" else ((0, 255), (0, 65535))
    fitting = [pair for pair in ranges if pair[0] <= least and greatest <= pair[1]]
    return f": pass value_range={fitting[0]}" if fitting else ": pass their actual value_range"
