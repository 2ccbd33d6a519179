"""Images that tests draw and encode; nothing of this package is imported."""

import io

import numpy as np
import PIL.Image


def draw(seed, size=(40, 50)):
    """A soft image of `size` (height, width) as a PIL image."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return PIL.Image.fromarray(coarse).resize(size[::-1], PIL.Image.Resampling.BICUBIC)


def encode(image, image_format="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()
