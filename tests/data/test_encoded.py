"""Files, bytes and PIL images: what they decode to, and how damaged or foreign ones are refused."""

import io
import struct
import warnings
import zlib

import numpy as np
import PIL.Image
import pytest

from keras_vit.data import headers, images

COLOUR = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8))


def encode(image, image_format, **options):
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def png_header(width, height):
    """A PNG of a few bytes that claims a size; it has no pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_bytes_decode_to_their_pixels():
    np.testing.assert_array_equal(images.decode("x", encode(COLOUR, "PNG"), 3), np.asarray(COLOUR))


JPEG_CUT = encode(COLOUR, "JPEG", quality=100)[:-99]
REFUSED = {
    "empty": (b"", r"it is empty \(0 bytes\)"),
    "pdf": (b"%PDF-1.4 whatever follows", "not an image or its header is damaged: 25 bytes, starts with %PDF-1.4"),
    "html": (b"<html><body>404</body>", "starts with <html>"),
    "zeros": (bytes(100), "100 bytes, starts with 00 00 00"),
    "jpeg_cut": (JPEG_CUT, "begins as JPEG but is truncated.*starts with ff d8 ff"),
    "png_without_pixels": (png_header(10, 10), "begins as PNG but is truncated"),
    "tiff": (encode(COLOUR, "TIFF"), "it is TIFF: open it with PIL.Image.open"),
    "webp_animated": (encode(COLOUR, "WEBP", save_all=True, append_images=[COLOUR.rotate(90)]), "WebP"),
    "bomb": (png_header(60000, 60000), "at most 178,956,970 pixels; got 60000 x 60000"),
    "just_too_large": (png_header(178_956_971, 1), "at most 178,956,970 pixels; .*178956971"),
    "no_height": (png_header(10, 0), "PNG"),
}


def test_what_is_no_image_is_refused_by_name():
    for kind, (contents, message) in REFUSED.items():
        with pytest.raises(ValueError, match=f"(?s)folder/cat.jpg must .*{message}"):
            print(kind, images.decode("folder/cat.jpg", contents, 3).shape)  # shown where nothing is raised


def test_a_progressive_jpeg_beyond_its_limit_is_not_called_damaged(monkeypatch):
    monkeypatch.setattr(headers, "MAX_PIXELS", 9_000)
    with pytest.raises(
        ValueError, match="^cat.jpg must have at most 3,000 pixels as a progressive JPEG; got 50 x 61 pixels$"
    ):
        images.decode("cat.jpg", encode(COLOUR.resize((61, 50)), "JPEG", progressive=True), 3)


def test_an_animated_webp_beyond_the_limit_is_not_called_damaged():
    animated = bytearray(encode(COLOUR, "WEBP", save_all=True, append_images=[COLOUR.rotate(90)]))
    animated[24:30] = (16_382).to_bytes(3, "little") * 2
    with pytest.raises(ValueError, match="^a.webp must have at most 178,956,970 pixels; got 16383 x 16383 pixels$"):
        images.decode("a.webp", bytes(animated), 3)


def test_large_images_below_the_limit_pass_the_header_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="begins as PNG but is truncated"):  # TensorFlow was asked to decode it
            images.decode("x", png_header(12000, 10000), 3)


def test_files_must_exist_and_be_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no image file {tmp_path / 'cat.png'}"):
        images.check_file(tmp_path / "cat.png")
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder, not an image.*from_directory"):
        images.check_file(tmp_path)


def test_pil_images_of_every_mode():
    grey = np.asarray(COLOUR.convert("L"))
    red_green_blue = np.asarray(COLOUR)
    palette = COLOUR.convert("P", palette=PIL.Image.ADAPTIVE)
    colours = np.asarray(palette.getpalette(), np.uint8).reshape(-1, 3)
    expected = [
        (COLOUR, red_green_blue),
        (COLOUR.convert("L"), grey[..., None]),
        (COLOUR.convert("LA"), grey[..., None]),
        (COLOUR.convert("RGBA"), red_green_blue),
        (COLOUR.convert("CMYK"), red_green_blue),
        (palette, colours[np.asarray(palette)]),
        (PIL.Image.fromarray(grey > 99), np.where(grey > 99, 255, 0)[..., None]),
        (PIL.Image.fromarray(grey.astype(np.uint16) * 257), grey[..., None]),
    ]
    for image, pixels in expected:
        np.testing.assert_allclose(images.from_pil("x", image), pixels, atol=1e-4, err_msg=image.mode)


def test_pil_images_without_a_range_are_refused():
    for mode in ("I", "F"):
        with pytest.raises(ValueError, match=f"mode '{mode}' of no known range: pass numpy.asarray"):
            images.from_pil("images[2]", PIL.Image.new(mode, (4, 4)))


def test_the_limit_holds_where_pillow_was_told_to_have_none(monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ValueError, match="at most 178,956,970 pixels; got 60000 x 50000 pixels"):
        images.decode("x", png_header(50000, 60000), 3)
    with pytest.raises(ValueError, match="at most 178,956,970 pixels; got 60000 x 50000 pixels"):
        images.from_pil("x", PIL.Image.open(io.BytesIO(png_header(50000, 60000))))


def test_damaged_and_empty_pil_images_are_refused():
    cut = PIL.Image.open(io.BytesIO(JPEG_CUT))
    with pytest.raises(ValueError, match=r"images\[0\] must be a PIL image that can be read; .*truncated"):
        images.from_pil("images[0]", cut)
    with pytest.raises(ValueError, match="height and a width above 0; got 0 x 3 pixels"):
        images.from_pil("x", PIL.Image.new("L", (3, 0)))
