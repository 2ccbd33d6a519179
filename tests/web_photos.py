"""Images of every kind that the page of `format="web"` meets."""

import struct

import numpy as np
import PIL.Image
from drawn import draw, encode


def photos():
    """(name, bytes) of images of every kind that pages meet."""
    image, rng = draw(1, (60, 80)), np.random.default_rng(0)
    alpha = np.dstack([np.asarray(image), rng.integers(0, 256, (60, 80), np.uint8)])
    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    return {
        "colour.png": encode(image),
        "grey.png": encode(image.convert("L")),
        "palette.png": encode(image.convert("P")),
        "alpha.png": encode(PIL.Image.fromarray(alpha)),
        "deep.png": encode(PIL.Image.fromarray(rng.integers(0, 2**16, (60, 80), np.uint16))),
        "long.png": encode(draw(2, (300, 20))),
        "wide.png": encode(draw(3, (20, 300))),
        "small.png": encode(draw(4, (9, 7))),
        "large.png": encode(draw(5, (700, 500))),
        "noise.png": encode(PIL.Image.fromarray(rng.integers(0, 256, (61, 83, 3), np.uint8))),
        "turned.jpg": encode(image, "JPEG", quality=95, subsampling=0, exif=turned),
        "profile.jpg": encode(image, "JPEG", quality=95, icc_profile=display_profile()),
        "cmyk.jpg": encode(image.convert("CMYK"), "JPEG", quality=95),
        "clear.webp": encode(PIL.Image.fromarray(alpha), "WEBP", lossless=True, exact=True),
        "photo.jpg": encode(draw(6, (120, 90)), "JPEG", quality=95),
    }


def display_profile():
    """Return an ICC profile with wide primaries (those of Display P3) and a gamma of 2.2, as photos of phones have."""

    def numbers(*values):
        return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(value * 2**16) for value in values))

    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256)) + b"\0\0"
    white = 0.9642, 1.0, 0.8249
    tags = {b"wtpt": numbers(*white), b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}
    tags |= {b"rXYZ": numbers(0.51512, 0.2412, -0.00105), b"gXYZ": numbers(0.29198, 0.69225, 0.04189)}
    tags |= {b"bXYZ": numbers(0.1571, 0.06657, 0.78407), b"cprt": b"text\0\0\0\0none\0\0\0\0"}
    tags |= {b"desc": b"desc\0\0\0\0" + struct.pack(">I", 5) + b"wide\0".ljust(83, b"\0")}
    table, values, start = struct.pack(">I", len(tags)), b"", 132 + 12 * len(tags)
    for name, value in tags.items():
        table += name + struct.pack(">II", start + len(values), len(value))
        values += value
    head = struct.pack(">I4xI12s6H", start + len(values), 0x02400000, b"mntrRGB XYZ ", 2026, *(1,) * 5)
    head += b"acsp" + b"\0" * 28 + numbers(*white)[8:]
    return head.ljust(128, b"\0") + table + values
