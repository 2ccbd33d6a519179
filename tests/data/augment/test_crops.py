"""Crops: statistics of their windows, and a JPEG's window decoded alone against decoding all of it."""

import functools
import io

import numpy as np
import PIL.Image
import pytest
import scipy.stats
import sklearn.datasets
import tensorflow as tf
from augmented import each
from slow_rows import slow_after

from keras_vit.data import preprocessing
from keras_vit.data.augment import parse_augment
from keras_vit.data.augment.crops import cut

PHOTO = sklearn.datasets.load_sample_image("china.jpg")  # (427, 640, 3)
DRAWS = 10_000


def encoded(image, form="JPEG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def windows(text, height, width, count=DRAWS):
    """(top, left, height, width) of `count` crops, read from the corners of crops of an image of coordinates."""
    (operation,) = parse_augment((text,))
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    image = tf.constant(np.stack([rows, columns, rows], -1))

    def corners(number):
        # Twice the size of the image: the first and last pixels of a nearest resize are the window's corners.
        crop = operation(image, (2 * height, 2 * width), 3, tf.stack([number, number]))
        return tf.stack([crop[0, 0, :2], crop[-1, -1, :2]])

    found = each(corners, count)
    return np.concatenate([found[:, 0], found[:, 1] - found[:, 0] + 1], axis=1).astype(int)


def expected_inception(height, width, areas, aspects, count):
    """The stated distribution in NumPy: an aspect ratio, then a height between those of the extreme areas."""
    rng, found = np.random.default_rng(1), []
    while len(found) < count:
        aspect = rng.uniform(*aspects)
        least, most = (int(np.rint(np.sqrt(area * height * width / aspect))) for area in areas)
        most = min(most, height, int((width + 0.5) / aspect))
        drawn = rng.integers(least, most + 1)
        if drawn * np.rint(drawn * aspect) >= areas[0] * height * width:
            found.append((drawn, np.rint(drawn * aspect)))
    return np.array(found)


@pytest.mark.slow
def test_windows_of_inception_crop():
    height, width = 60, 80
    top, left, rows, columns = windows("inception_crop(interpolation='nearest')", height, width).T
    area, aspect = rows * columns / (height * width), columns / rows
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + rows <= height).all() and (left + columns <= width).all()
    assert area.min() >= 0.05 and area.max() <= 1.0 and area.min() < 0.06 and area.max() > 0.95
    rounding = 0.5 / rows  # the width is rounded to a whole pixel
    assert (aspect >= 0.75 - rounding).all() and (aspect <= 1.33 + rounding).all()
    expected = expected_inception(height, width, (0.05, 1.0), (0.75, 1.33), DRAWS)
    assert abs(area.mean() - expected.prod(1).mean() / (height * width)) < 0.01
    assert abs(aspect.mean() - (expected[:, 1] / expected[:, 0]).mean()) < 0.01
    for axis, sides in enumerate((rows, columns)):
        assert scipy.stats.ks_2samp(sides, expected[:, axis]).statistic < 0.03
    for start, room in ((top, height - rows), (left, width - columns)):
        # Anywhere within the room that is left, but for the last place, which TensorFlow never takes.
        assert (start < np.maximum(room, 1)).all()
        places = (start[room > 20] + 0.5) / room[room > 20]
        assert scipy.stats.kstest(places, "uniform").statistic < 0.03


def test_windows_of_random_resized_crop():
    height, width = 30, 40
    text = "random_resized_crop(interpolation='nearest')"
    top, left, rows, columns = windows(text, height, width, 4000).T
    rng, expected = np.random.default_rng(1), []
    for area, aspect in zip(
        rng.uniform(0.08, 1, 8000), np.exp(rng.uniform(*np.log((3 / 4, 4 / 3)), 8000)), strict=True
    ):
        sides = np.rint(np.sqrt(area * height * width * np.array((1 / aspect, aspect))))
        if sides[0] <= height and sides[1] <= width:
            expected.append(sides)
    for axis, sides in enumerate((rows, columns)):
        assert scipy.stats.ks_2samp(sides, np.array(expected)[:, axis]).pvalue > 1e-3
    for start, room in ((top, height - rows), (left, width - columns)):
        assert start.min() == 0 and (start <= room).all()
        assert abs(((start + 0.5) / (room + 1)).mean() - 0.5) < 0.02


def test_windows_that_cannot_be():
    # No window of 5 % within the aspect ratios: the whole image, or the largest central one.
    assert set(map(tuple, windows("inception_crop(interpolation='nearest')", 4, 200, 20))) == {(0, 0, 4, 200)}
    text = "random_resized_crop(interpolation='nearest')"
    assert set(map(tuple, windows(text, 6, 200, 20))) == {(0, 96, 6, 8)}
    assert set(map(tuple, windows(text, 200, 6, 20))) == {(96, 0, 8, 6)}


@functools.cache
def cut_window(channels):
    """Function from a file and a window to that part of the image, traced once."""
    return tf.function(lambda contents, window: cut(contents, channels, lambda shape: window), autograph=False)


FORMS = ("4:2:0", "progressive", "grey", "PNG", "4:4:4", "4:2:2", "4:1:1", "CMYK", "WEBP")


@pytest.mark.parametrize("channels", slow_after(1, [3, 1]))
@pytest.mark.parametrize("form", slow_after(4, FORMS))
def test_the_window_of_a_file_is_that_of_the_whole(form, channels):
    photo = PIL.Image.fromarray(PHOTO[100:351, 200:533])
    contents = {
        "progressive": lambda: encoded(photo, quality=80, progressive=True),
        "grey": lambda: encoded(photo.convert("L"), quality=80),
        "CMYK": lambda: encoded(photo.convert("CMYK"), quality=80),
        "PNG": lambda: encoded(photo, "PNG"),
        "WEBP": lambda: encoded(photo, "WEBP"),
    }.get(form, lambda: encoded(photo, quality=80, subsampling=form))()
    whole = preprocessing.decode(tf.constant(contents), channels).numpy()
    rng = np.random.default_rng(0)
    for _ in range(40):
        height, width = rng.integers(1, 252), rng.integers(1, 334)
        top, left = rng.integers(0, 252 - height), rng.integers(0, 334 - width)
        window = tf.constant((top, left, height, width), tf.int32)
        found = cut_window(channels)(tf.constant(contents), window).numpy()
        np.testing.assert_array_equal(found, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_file_and_pixels_give_the_same_crops(interpolation):
    (operation,) = parse_augment((f"inception_crop(interpolation={interpolation!r})",))
    contents = encoded(PIL.Image.fromarray(PHOTO), quality=90)
    pixels = preprocessing.decode(tf.constant(contents), 3)
    for number in range(6):
        seed = tf.constant((7, number), tf.int64)
        from_file = operation(tf.constant(contents), size=(96, 128), channels=3, seed=seed)
        assert from_file.shape == (96, 128, 3) and from_file.dtype == tf.float32
        np.testing.assert_array_equal(from_file, operation(pixels, (96, 128), 3, seed))
        assert not np.array_equal(from_file, operation(pixels, (96, 128), 3, seed + 1))


def test_a_jpeg_cut_short_is_refused_wherever_the_window_lies():
    contents = encoded(PIL.Image.fromarray(PHOTO), quality=90)
    for share in (0.3, 0.9, 0.999):
        damaged = tf.constant(contents[: int(len(contents) * share)])
        with pytest.raises(tf.errors.InvalidArgumentError):
            cut(damaged, 3, lambda shape: tf.constant((0, 0, 8, 8)))
    trailing = cut(tf.constant(contents + b"appendix"), 3, lambda shape: tf.constant((0, 0, 8, 8)))
    np.testing.assert_array_equal(trailing, preprocessing.decode(tf.constant(contents), 3)[:8, :8])


def test_random_crop_cuts_from_the_resized_image():
    (operation,) = parse_augment(("random_crop((40, 48))",))
    contents = encoded(PIL.Image.fromarray(PHOTO), "PNG")
    resized = tf.image.resize(PHOTO, (40, 48)).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(resized, (32, 32, 3))[:, :, 0]
    found = set()
    for number in range(60):
        crop = operation(tf.constant(contents), (32, 32), 3, tf.constant((1, number))).numpy()
        (place,) = np.argwhere((windows == crop).all((-1, -2, -3)))
        found.add(tuple(place))
    assert len(found) > 40 and {row for row, _ in found} == set(range(9))
    with pytest.raises(ValueError, match=r"resize must be at least the image's size \(64, 32\); got \(40, 48\)"):
        operation(tf.constant(contents), (64, 32), 3, tf.constant((1, 2)))


@pytest.mark.slow
def test_the_seed_determines_the_crop_whatever_the_thread():
    contents = encoded(PIL.Image.fromarray(PHOTO[::2, ::2]), quality=90)
    for text in ("inception_crop", "random_resized_crop", "random_crop(64)"):
        (operation,) = parse_augment((text,))

        def crop(number, operation=operation):
            return operation(tf.constant(contents), (48, 48), 3, tf.stack([number, number]))

        first = each(crop, 16, parallel=1)
        np.testing.assert_array_equal(first, each(crop, 16, parallel=8))
        assert len(np.unique(first.reshape(16, -1), axis=0)) > 8
