"""Generated images to check an export on: smooth colours in several formats and shapes."""

import io
import math

import numpy as np
import PIL.Image

_KINDS = (("JPEG", (240, 320)), ("PNG", (224, 224)), ("JPEG", (400, 200)), ("BMP", (97, 131)))  # height, width


def sample_files(count, max_pixels=None):
    """Return `count` encoded images (bytes) of at most `max_pixels`, the same for every call."""
    return [_sample(index, *_KINDS[index % len(_KINDS)], max_pixels) for index in range(count)]


def _sample(seed, image_format, size, max_pixels):
    shrunk = 1.0 if max_pixels is None else min(1.0, math.sqrt(max_pixels / math.prod(size)))
    size = tuple(max(1, int(shrunk * side)) for side in size)
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    image = PIL.Image.fromarray(coarse).resize(size[::-1], PIL.Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, image_format)
    return stream.getvalue()
