"""Images beyond the limit are refused before they are decoded, whatever decodes them."""

import logging
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from image_sets import LEVELS, batches, encode, numbered, write_folder

from keras_vit.data import from_directory, headers, preprocessing, train_pipeline
from keras_vit.data.augment import parse_augment

FORMATS = ("JPEG", "PNG", "GIF", "BMP")
SEED = tf.constant((1, 2), tf.int64)


def blank(height, width, image_format):
    return encode(np.zeros((height, width, 3), np.uint8), image_format)


@pytest.mark.parametrize("image_format", FORMATS)
def test_what_a_header_claims_is_limited(image_format, monkeypatch):
    monkeypatch.setattr(headers, "MAX_PIXELS", 20 * 300)
    decode = tf.function(lambda contents: preprocessing.decode(contents, 3), autograph=False)
    for within, beyond in (((20, 300), (21, 300)), ((300, 20), (300, 21))):
        assert decode(tf.constant(blank(*within, image_format))).shape == (*within, 3)
        with pytest.raises(tf.errors.InvalidArgumentError, match="an image must have at most 6,000 pixels"):
            decode(tf.constant(blank(*beyond, image_format)))


@pytest.mark.parametrize("text", ["inception_crop", "random_resized_crop", "random_crop(8)"])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_crops_decode_no_more(text, image_format, monkeypatch):
    monkeypatch.setattr(headers, "MAX_PIXELS", 400)
    (crop,) = parse_augment((text,))
    assert crop(tf.constant(blank(20, 20, image_format)), (8, 8), 3, SEED).shape == (8, 8, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 400 pixels"):
        crop(tf.constant(blank(20, 21, image_format)), (8, 8), 3, SEED)


def test_bmp_from_the_top_and_sides_whose_product_is_beyond_32_bits():
    data = bytearray(blank(20, 20, "BMP"))
    data[18:26] = np.array((20_000, -20_000), "<i4").tobytes()
    largest = bytearray(blank(8, 8, "JPEG"))
    place = largest.index(b"\xff\xc0") + 5  # behind the marker, the length and the precision
    largest[place : place + 4] = b"\xea\x60" * 2  # 60,000 squared
    for contents in (data, largest):
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most 178,956,970 pixels"):
            preprocessing.decode(tf.constant(bytes(contents)), 3)


def test_a_progressive_jpeg_may_have_a_third_as_many(monkeypatch):
    monkeypatch.setattr(headers, "MAX_PIXELS", 9000)
    pixels = np.zeros((60, 51, 3), np.uint8)
    progressive = [encode(image, "JPEG", progressive=True) for image in (pixels[:, :50], pixels)]
    assert preprocessing.decode(tf.constant(progressive[0]), 3).shape == (60, 50, 3)
    assert preprocessing.decode(tf.constant(encode(pixels, "JPEG")), 3).shape == (60, 51, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 3,000 pixels as a progressive JPEG"):
        preprocessing.decode(tf.constant(progressive[1]), 3)


def test_a_png_must_begin_with_its_header():
    """libpng takes unknown chunks before it, whose bytes would then stand where the sides are looked for."""
    contents = blank(30, 40, "PNG")
    chunk = struct.pack(">I", 20) + b"abCd" + struct.pack(">5I", 8, 8, 8, 8, 8)
    hidden = contents[:8] + chunk + struct.pack(">I", zlib.crc32(chunk[4:])) + contents[8:]
    assert tf.io.decode_png(hidden).shape == (30, 40, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a PNG must start with its header"):
        preprocessing.decode(tf.constant(hidden), 3)


@pytest.mark.slow
def test_a_pipeline_skips_and_names_them(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(headers, "MAX_PIXELS", 64)
    contents = [encode(image) for image in numbered(6)]
    contents[4] = blank(8, 9, "PNG")
    source = from_directory(write_folder(tmp_path, contents, range(6)))
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        [(_, labels)] = batches(train_pipeline(source, LEVELS, 6, shuffle=False, max_corrupt=0.2), 1)
    assert labels.tolist() == [0, 1, 2, 3, 5, 5]
    assert "4.png must have at most 64 pixels; got 8 x 9 pixels (1 of 6 skipped so far)" in caplog.text
