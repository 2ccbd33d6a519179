"""Rare kinds of BMP, GIF and WebP have the pixels of Pillow, or an error where Pillow has one."""

import io
import pathlib
import struct

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf

from keras_vit import Preprocessing
from keras_vit.data import bmp_gif, headers, images, preprocessing
from keras_vit.serving.rows import read_rows

IMAGES = pathlib.Path(__file__).parent / "images"
WIDTH, HEIGHT = 13, 7
SIZES = (40, 52, 56, 64, 108, 124)  # of headers
MASKS = {
    16: ((0xF800, 0x7E0, 0x1F, 0), (0x7C00, 0x3E0, 0x1F, 0), (0xF00, 0xF0, 0xF, 0)),
    24: ((0xFF0000, 0xFF00, 0xFF, 0),),
    32: (
        *((0xFF0000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0), (0xFF000000, 0xFF0000, 0xFF00, 0xFF)),
        *((0xFF, 0xFF00, 0xFF0000, 0xFF000000), (0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0, 0, 0, 0)),
        *((0xFF000000, 0xFF00, 0xFF, 0xFF0000), (0x3FF00000, 0xFFC00, 0x3FF, 0), (0xFF0000, 0xFF, 0xFF00, 0)),
    ),
}
RNG = np.random.default_rng(0)


def bmp(bits, size=40, compression=0, masks=(), pixels=None, height=HEIGHT, colors=0):
    if size == 12:
        header = struct.pack("<IHHHH", size, WIDTH, height, 1, bits)
    else:
        header = struct.pack("<IiiHHIIiiII", size, WIDTH, height, 1, bits, compression, 0, 0, 0, colors, 0)
        header = (header + struct.pack(f"<{len(masks)}I", *masks)).ljust(size, b"\0")
    if bits <= 8:
        header += RNG.bytes((3 if size == 12 else 4) * (colors or 2**bits))
    if pixels is None:
        pixels = RNG.bytes(HEIGHT * ((WIDTH * bits + 31) // 32 * 4))
        pixels = bytes(value % colors for value in pixels) if colors else pixels
    return b"BM" + struct.pack("<III", 14 + len(header) + len(pixels), 0, 14 + len(header)) + header + pixels


def bmps():
    for bits in (1, 4, 8, 16, 24, 32):
        yield from (bmp(bits, size) for size in (12, *SIZES))
        yield bmp(bits, height=-HEIGHT)
        for masks in MASKS.get(bits, ()):
            yield from (bmp(bits, size, 3, masks[: (size - 40) // 4 or 3]) for size in SIZES if size != 64)
    yield bmp(8, colors=16)
    rows = b"\x0d\x05\0\0" * 3 + b"\x03\x05\0\2\x03\1\x07\x07\0\0" + b"\0\x05\1\2\3\4\5\0\x08\x09\0\0" * 3 + b"\0\1"
    yield from (bmp(bits, 40, kind, pixels=rows) for bits, kind in ((8, 1), (4, 2)))
    yield bmp(8, 40, 1, pixels=b"\x0d\x05\0\0" * 6 + b"\x0d\x09\0\1")
    yield from (bmp(2), bmp(24, size=16), bmp(24, compression=4), bmp(8, 40, 1, pixels=b"\x03\x05\0\1"), bmp(4)[:-9])
    yield from (bmp(24, compression=1 << 24), bmp(24)[:17] + b"\x20" + bmp(24)[18:])  # TensorFlow reads both


def gif(screen, corner=(0, 0), clear=None, has_own_table=False, control=0, interlace=False):
    """A GIF of one frame of 9 x 6 pixels at a place of a screen."""
    stream = io.BytesIO()
    image = PIL.Image.fromarray(RNG.integers(0, 8, (6, 9), dtype=np.uint8), "P")
    image.putpalette(RNG.bytes(24))
    image.save(stream, "GIF", interlace=interlace)
    contents = stream.getvalue()
    table, frame = contents[13:37], bytearray(contents[37 + contents[37:].index(b"\x2c") :])
    frame[1:5] = struct.pack("<HH", *corner)
    if has_own_table:
        frame[9] |= 0x82
        frame[10:10] = table
    flags = (clear is not None) | control << 2
    extension = b"\x21\xf9\x04" + bytes([flags, 0, 0, clear or 0, 0]) if flags else b""
    start = b"GIF89a" + struct.pack("<HH", *screen) + bytes([0x82, 5, 0]) + table
    return start + extension + bytes(frame)


def gifs():
    for screen, corner in (
        ((9, 6), (0, 0)),
        ((16, 12), (3, 2)),
        ((10, 10), (5, 7)),
        ((4, 4), (0, 0)),
        ((0, 0), (0, 0)),
    ):
        yield from (gif(screen, corner, **options) for options in ({}, {"clear": 3}, {"has_own_table": True}))
    yield gif((16, 12), (3, 2), interlace=True)
    yield from (gif((16, 12), (3, 2), clear=clear, control=control) for clear in (None, 3) for control in (2, 3))


def webps():
    image = PIL.Image.fromarray(RNG.integers(0, 256, (12, 16, 4), dtype=np.uint8), "RGBA").resize((64, 48))
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    for options in ({"lossless": True}, {"lossless": True, "exact": True}, {"quality": 80}, {"exif": exif}):
        for mode in ("RGBA", "RGB"):
            stream = io.BytesIO()
            image.convert(mode).save(stream, "WEBP", **options)
            yield stream.getvalue()


def of_pillow(contents):
    try:
        with PIL.Image.open(io.BytesIO(contents)) as image:
            return np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, ValueError):
        return None


def test_rare_kinds_have_the_pixels_of_pillow():
    files = [path.read_bytes() for path in IMAGES.iterdir() if not path.name.startswith("exif")]
    files += [*bmps(), *gifs(), *webps()]
    assert len(files) > 130
    for number, contents in enumerate(files):
        name, expected = f"{number}.{contents[:4]}", of_pillow(contents)
        if expected is None:
            with pytest.raises(ValueError, match=f"^{number}[.].* must be "):
                images.decode(name, contents, 3)
        else:
            found = images.decode(name, contents, 3)
            np.testing.assert_allclose(found, expected, atol=2 * (contents[:4] == b"RIFF"), err_msg=name)


def test_a_graph_without_python_refuses_the_bmps_that_only_pillow_decodes():
    rare = bmp(24, size=12)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a BMP must have 8, 24 or 32 bits"):
        preprocessing.decode(rare, 3, has_python=False)
    _, errors = read_rows(tf.constant([rare, bmp(24)]), Preprocessing(size=8), headers.MAX_PIXELS, "row")
    assert errors.numpy().tolist() == [b"a BMP that is damaged, unsupported, or larger than its header states", b""]


def test_a_graph_without_python_decodes_the_others_alike():
    """Of BMPs those of 8, 24 and 32 bits without compression or with the usual masks, and every GIF."""
    decoded = []
    for contents in (*bmps(), *gifs()):
        try:
            found = preprocessing.decode(contents, 3, has_python=False)
        except tf.errors.InvalidArgumentError:
            assert contents[:2] == b"BM"
        else:
            np.testing.assert_array_equal(found, of_pillow(contents))
            decoded.append(contents[:2])
    assert decoded.count(b"BM") >= 20 and decoded.count(b"GI") == len([*gifs()])


def test_a_frame_that_is_larger_than_its_screen_has_a_limit():
    for has_python in (True, False):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="must have at most 53 pixels; got"):
            bmp_gif.decode(tf.constant(gif((4, 4))), 53, has_python)
    assert bmp_gif.decode(tf.constant(gif((4, 4))), 54, True).shape == (6, 9, 3)


def test_pipelines_read_rare_kinds_in_parallel():
    files = [bmp(4), gif((16, 12), (3, 2)), next(webps())] * 8
    np.testing.assert_array_equal(bmp_gif.decode(tf.constant(files[0]), 10**6, True), of_pillow(files[0]))  # eagerly
    found = tf.data.Dataset.from_tensor_slices(files).map(lambda file: preprocessing.decode(file, 3), 4)
    for image, contents in zip(found, files, strict=True):
        np.testing.assert_array_equal(image, of_pillow(contents))


def test_integers_of_16_bits_with_values_of_8_bits_need_a_range():
    array = np.full((8, 8, 3), 255, np.uint16)
    with pytest.raises(
        ValueError, match=r"from 0 to 65535 for uint16; they range from 255 to 255: pass value_range=\(0, 255\)"
    ):
        images.as_images(array)
    for value_range, level in (((0, 255), 255), ((0, 65535), 255 / 257)):
        (read,) = images.as_images(array, value_range)
        np.testing.assert_allclose(read(3), level, rtol=1e-6)
    assert images.as_images(np.zeros((8, 8), np.uint16))[0](1).max() == 0
