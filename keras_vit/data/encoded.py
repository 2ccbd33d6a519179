"""Decoding encoded images (files, bytes) and PIL images to pixels; invalid or too large images raise errors."""

import contextlib
import io
import os
import warnings

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageOps
import tensorflow as tf

from keras_vit.data import pixel_limit, preprocessing

_FORMATS = "JPEG, PNG, BMP, GIF, WebP (not animated)"
_READABLE = ("JPEG", "MPO", "PNG", "BMP", "GIF", "WEBP")  # Pillow's names; MPO: a JPEG followed by more images
_GREY_MODES = ("1", "L", "LA", "La")


def check_file(path):
    """Raise unless `path` is an existing file."""
    if os.path.isdir(path):
        raise ValueError(
            f"{os.fspath(path)} is a folder, not an image: pass its files, or use keras_vit.data.from_directory"
        )
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no image file {os.fspath(path)}")


def read_file(path):
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def decode(name, contents, channels):
    """Decode the bytes of a file to uint8 (height, width, channels) with `preprocessing.decode`.

    Raises:
        ValueError: on bytes that are not an image, a damaged image, or more than `pixel_limit.MAX_PIXELS` pixels; the
            message begins with `name`.
    """
    image_format = _check_header(name, contents)
    try:
        image = preprocessing.decode(tf.constant(contents), channels)
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
        width, height = pixel_limit.header_sides(tf.constant(contents)).numpy()
        _check_sides(name, height or 1, width or 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, and about damage outside the header
            with PIL.Image.open(io.BytesIO(contents)) as header:
                image_format, (width, height) = header.format, header.size
    except PIL.Image.DecompressionBombError as error:
        raise ValueError(f"{name} must have at most {pixel_limit.MAX_PIXELS:,} pixels; {error}") from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise ValueError(
            f"{name} must be an image ({_FORMATS}); it is not an image or its header is damaged: "
            f"{len(contents)} bytes, {_beginning(contents)}"
        ) from None
    _check_sides(name, height, width)
    limit = pixel_limit.MAX_PIXELS // 3
    if height * width > limit and image_format in ("JPEG", "MPO") and pixel_limit.is_progressive(contents):
        _check_sides(name, height, width, limit, " as a progressive JPEG")
    return image_format


def _check_sides(name, height, width, limit=None, of_kind=""):
    limit = pixel_limit.MAX_PIXELS if limit is None else limit
    if not height or not width:
        raise ValueError(f"{name} must have a height and a width above 0; got {height} x {width} pixels")
    if height * width > limit:
        raise ValueError(f"{name} must have at most {limit:,} pixels{of_kind}; got {height} x {width} pixels")


def _beginning(contents):
    start = bytes(contents[:12])
    is_text = all(32 <= byte < 127 for byte in start[:4])
    return f"starts with {start.decode('ascii', 'replace').rstrip() if is_text else start.hex(' ')}"
