"""The first frame of a GIF is cut out as Pillow finds it, and what follows it is never decoded."""

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from faults import for_each

from keras_vit.data import headers, preprocessing


def animation(count, size=(30, 20), **options):
    rng = np.random.default_rng(count)
    frames = [PIL.Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).quantize(64) for _ in range(count)]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], **options)
    return stream.getvalue()


def first_frame(contents):
    return headers.first_frame(tf.constant(contents))[0].numpy()


@pytest.mark.parametrize("options", [{}, {"comment": b"words " * 200, "loop": 0}, {"interlace": 0}])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_it_is_the_first_frame_of_pillow(count, options):
    contents = animation(count, **options)
    cut = first_frame(contents)
    assert cut[-1:] == b"\x3b" and len(cut) <= len(contents) / count + 3000
    with PIL.Image.open(io.BytesIO(cut)) as image:
        assert image.n_frames == 1
        expected = np.asarray(image.convert("RGB"))
    with PIL.Image.open(io.BytesIO(contents)) as image:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), expected)
    np.testing.assert_array_equal(preprocessing.decode(tf.constant(contents), 3), expected)


def test_a_frame_with_a_table_of_its_own():
    contents = animation(1)
    size_of_table = 3 * 2 ** ((contents[10] & 7) + 1)
    table, rest = contents[13 : 13 + size_of_table], bytearray(contents[13 + size_of_table :])
    place = rest.index(b"\x2c")
    local = bytearray(contents[:13] + rest[: place + 10] + table + rest[place + 10 :])
    local[10] = 0
    local[13 + place + 9] |= 0x80 | (contents[10] & 7)
    assert first_frame(bytes(local)) == bytes(local)
    decoded = preprocessing.decode(tf.constant(bytes(local)), 3)
    np.testing.assert_array_equal(decoded, preprocessing.decode(tf.constant(contents), 3))


def test_what_has_no_whole_frame_stays_as_it_is():
    contents = animation(3)
    for length in (0, 5, 10, 12, 40, 700, len(first_frame(contents)) - 3):
        assert first_frame(contents[:length]) == contents[:length]
    blocks = 13 + 3 * 2 ** ((contents[10] & 7) + 1)
    other = contents[:blocks] + b"\x77" + contents[blocks + 1 :]  # no block of this kind is known
    assert first_frame(other) == other


def test_later_frames_are_not_decoded():
    contents = bytearray(animation(2))
    start = len(first_frame(bytes(contents))) - 1
    place = contents.index(b"\x2c", start)
    contents[place + 5 : place + 9] = b"\xff" * 4  # a frame of 65,535 x 65,535
    assert preprocessing.decode(tf.constant(bytes(contents)), 3).shape == (30, 20, 3)


def test_a_frame_beyond_the_limits_is_refused(monkeypatch):
    contents = bytearray(animation(1))
    place = contents.index(b"\x2c", 13 + 3 * 2 ** ((contents[10] & 7) + 1))
    contents[place + 5 : place + 9] = b"\xff" * 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 178,956,970 pixels"):
        first_frame(bytes(contents))
    monkeypatch.setattr(headers, "_MAX_BLOCKS", 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 5 blocks"):
        first_frame(animation(1, (90, 90)))


@pytest.mark.parametrize("options", [{"quality": 60}, {"lossless": True}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}])
def test_sides_of_a_webp(options):
    stream = io.BytesIO()
    mode = "RGBA" if "lossless" in options else "RGB"
    PIL.Image.new(mode, (300, 211), "olive").save(stream, "WEBP", **options)
    assert headers.header_sides(tf.constant(stream.getvalue())).numpy().tolist() == [300, 211]


@for_each("contents", [b"", b"\x89PN", b"GIF", b"RIFF", b"hello" * 9, b"RIFF____WEBPVP8Z" + b"\xff" * 9])
def test_no_sides_in_what_is_no_image(contents):
    assert headers.header_sides(tf.constant(contents)).numpy().tolist() == [0, 0]
