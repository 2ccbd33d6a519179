"""What visitors send: images of every kind, and what is refused in a sentence."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.demo import uploads
from keras_vit.demo.uploads import read_bytes, read_image


def image(mode="RGB", size=(24, 16)):
    levels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype="uint8")
    return Image.fromarray(levels).convert(mode)


def claiming(width, height):
    """A PNG whose header claims a size, with hardly anything behind it."""
    header = b"IHDR" + struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    end = b"\0\0\0\0IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    return start + end


def animated(width, height):
    """An animated WebP whose header claims a size."""
    stream = io.BytesIO()
    image().save(stream, "WEBP", save_all=True, append_images=[image().rotate(90)])
    data = bytearray(stream.getvalue())
    data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.jpg", "a.webp"])
def test_pixels_are_those_that_the_package_decodes(tmp_path, name):
    image().save(tmp_path / name)
    pixels = read_image(tmp_path / name)
    assert pixels.shape == (16, 24, 3) and pixels.dtype == np.uint8
    preprocessing = keras_vit.Preprocessing(size=(16, 24))
    expected = keras_vit.preprocess(tmp_path / name, preprocessing)
    np.testing.assert_array_equal(keras_vit.preprocess(pixels, preprocessing), expected)


def test_grey_and_transparent_images_have_three_channels(tmp_path):
    for mode in ("L", "LA", "RGBA", "P"):
        image(mode).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").shape == (16, 24, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image().save(tmp_path / "a.png", exif=exif)
    pixels = read_image(tmp_path / "a.png")
    plain = np.asarray(image())
    turned = {
        1: plain,
        2: plain[:, ::-1],
        3: plain[::-1, ::-1],
        4: plain[::-1],
        5: plain.transpose(1, 0, 2),
        6: plain[::-1].transpose(1, 0, 2),
        7: plain[::-1, ::-1].transpose(1, 0, 2),
        8: plain[:, ::-1].transpose(1, 0, 2),
    }
    np.testing.assert_array_equal(pixels, turned[orientation])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"^x.png must be an image .*; it is empty \(0 bytes\)"),
        (
            b"just text",
            "^x.png must be an image .*; it is not an image or its header is damaged: 9 bytes, starts with just te",
        ),
        (claiming(9_000, 8_000), "^x.png must have at most 64,000,000 pixels; got 8000 x 9000"),
        (claiming(20_000, 20_000), "^x.png must have at most 64,000,000 pixels; got 20000 x 20000"),
        (animated(9_000, 8_000), "^x.png must have at most 64,000,000 pixels; got 8000 x 9000"),
        (claiming(10, 10), "^x.png must be a whole image"),
    ],
    ids=["empty", "text", "too many pixels", "far too many pixels", "an animation", "cut short"],
)
def test_what_is_no_image_is_refused_without_its_place(tmp_path, contents, message):
    (tmp_path / "x.png").write_bytes(contents)
    with pytest.raises(ValueError, match=message) as error:
        read_image(tmp_path / "x.png")
    assert str(tmp_path) not in str(error.value)
    with pytest.raises(ValueError, match="^the drawing must"):
        read_bytes("the drawing", contents)


def test_large_files_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_BYTES", 100)
    (tmp_path / "x.png").write_bytes(b"0" * 101)
    with pytest.raises(ValueError, match="x.png must have at most 100 bytes; got 101"):
        read_image(tmp_path / "x.png")
