"""RandAugment: each operation against Pillow or NumPy on a photograph, what is drawn, timm's variant."""

import math

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import pytest
import scipy.stats
import sklearn.datasets
import tensorflow as tf
from augmented import each
from slow_rows import slow_after

from keras_vit.data.augment import parse_augment
from keras_vit.data.augment.randaugment import ORIGINAL, TIMM_INCREASING, randaugment, timm_randaugment

PHOTO = np.ascontiguousarray(sklearn.datasets.load_sample_image("china.jpg")[150:310, 200:392])  # (160, 192, 3)
HEIGHT, WIDTH = PHOTO.shape[:2]
GREY = (128, 128, 128)
PLACE = (0.3, 0.95)  # a cutout over the right border
AFFINE, NEAREST, BILINEAR = PIL.Image.Transform.AFFINE, PIL.Image.Resampling.NEAREST, PIL.Image.Resampling.BILINEAR
GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


def pillow(function):
    """The row of a reference table that calls Pillow."""
    return lambda m, sign: np.asarray(function(PIL.Image.fromarray(PHOTO), m, sign))


def moved(image, matrix, resample=NEAREST, fill=GREY):
    return image.transform(image.size, AFFINE, matrix, resample=resample, fillcolor=fill)


def cut_out(m, sign):
    result, reach = PHOTO.copy(), int(40 * m)
    row, column = int(PLACE[0] * HEIGHT), int(PLACE[1] * WIDTH)
    result[max(row - reach, 0) : row + reach, max(column - reach, 0) : column + reach] = 128
    return result


def posterized(image, bits):
    # Pillow's posterize takes 1 to 8 bits; the original code takes any number.
    return image.point(lambda level: level & (255 << (8 - min(bits, 8)) & 255))


def solarize_added(image, addition):
    return image.point(lambda level: min(level + addition, 255) if level < 128 else level)


def enhanced(kind):
    return pillow(lambda image, m, sign: kind(image).enhance(1.8 * m + 0.1))


# Pillow puts the centre of the first pixel at (0.5, 0.5), the original code at (0, 0): hence the halves in the shears.
EXPECTED = {
    "AutoContrast": pillow(lambda image, m, sign: PIL.ImageOps.autocontrast(image)),
    "Equalize": pillow(lambda image, m, sign: PIL.ImageOps.equalize(image)),
    "Invert": pillow(lambda image, m, sign: PIL.ImageOps.invert(image)),
    "Rotate": pillow(lambda image, m, sign: image.rotate(sign * 30 * m, fillcolor=GREY)),
    "Posterize": pillow(lambda image, m, sign: posterized(image, int(4 * m))),
    "Solarize": pillow(lambda image, m, sign: PIL.ImageOps.solarize(image, int(256 * m))),
    "Color": enhanced(PIL.ImageEnhance.Color),
    "Contrast": enhanced(PIL.ImageEnhance.Contrast),
    "Brightness": enhanced(PIL.ImageEnhance.Brightness),
    "Sharpness": enhanced(PIL.ImageEnhance.Sharpness),
    "ShearX": pillow(lambda image, m, sign: moved(image, (1, sign * 0.3 * m, -sign * 0.15 * m, 0, 1, 0))),
    "ShearY": pillow(lambda image, m, sign: moved(image, (1, 0, 0, sign * 0.3 * m, 1, -sign * 0.15 * m))),
    "TranslateX": pillow(lambda image, m, sign: moved(image, (1, 0, sign * 100 * m, 0, 1, 0))),
    "TranslateY": pillow(lambda image, m, sign: moved(image, (1, 0, 0, 0, 1, sign * 100 * m))),
    "Cutout": cut_out,
    "SolarizeAdd": pillow(lambda image, m, sign: solarize_added(image, int(110 * m))),
}


def apply(table, name, m, sign=1.0, image=PHOTO):
    result = table[name](tf.constant(image), m, tf.constant(sign), PLACE)
    assert result.dtype == tf.uint8 and result.shape == image.shape
    return result.numpy()


def differences(result, expected):
    """Absolute differences, and the share of pixels that differ."""
    off = np.abs(result.astype(int) - expected)
    return off, off.max(-1).astype(bool).mean()


@pytest.mark.parametrize("magnitude", [0, 3, 10, 20])
@pytest.mark.parametrize("name", ORIGINAL)
def test_operation_is_that_of_pillow(name, magnitude):
    m = magnitude / 10
    if name in ("ShearX", "ShearY"):
        m *= 0.971  # 0.3 lies half way between two pixels in every tenth row
    for sign in (1.0, -1.0):
        off, share = differences(apply(ORIGINAL, name, m, sign), EXPECTED[name](m, sign))
        if name == "AutoContrast":
            assert off.max() <= 1  # Pillow's product of doubles may lie just below a whole value
        elif name == "Sharpness":
            # Pillow rounds the smooth image to the nearest whole value, the original code rounds it down.
            assert off.max() <= math.ceil(abs(1 - (1.8 * m + 0.1)))
        elif name in ("Rotate", "ShearX", "ShearY"):
            assert share < 0.01  # ties between two pixels, as Pillow counts in 1/65536 of a pixel
        else:
            assert off.max() == 0


def test_autocontrast_and_sharpness_in_exact_numbers():
    levels = PHOTO.astype(int)
    low, high = levels.min((0, 1)), levels.max((0, 1))
    np.testing.assert_array_equal(apply(ORIGINAL, "AutoContrast", 1.0), (levels - low) * 255 // (high - low))
    smooth = levels.copy()
    windows = np.lib.stride_tricks.sliding_window_view(levels, (3, 3), axis=(0, 1))
    smooth[1:-1, 1:-1] = (windows.sum((-1, -2)) + 4 * levels[1:-1, 1:-1]) // 13
    factor = np.float32(1.9)
    expected = np.clip(smooth + factor * (levels - smooth).astype(np.float32), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(apply(ORIGINAL, "Sharpness", 1.0), expected)


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY"])
def test_geometry_takes_the_nearest_pixel(name):
    angle, shear = math.radians(30 * 0.9), 0.3 * 0.9
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(float)
    middle_y, middle_x = (HEIGHT - 1) / 2, (WIDTH - 1) / 2
    at_x, at_y = {
        "Rotate": (
            middle_x + math.cos(angle) * (x - middle_x) - math.sin(angle) * (y - middle_y),
            middle_y + math.sin(angle) * (x - middle_x) + math.cos(angle) * (y - middle_y),
        ),
        "ShearX": (x + shear * y, y),
        "ShearY": (x, y + shear * x),
    }[name]
    column, row = np.round(at_x).astype(int), np.round(at_y).astype(int)
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    expected = np.where(inside[..., None], PHOTO[np.where(inside, row, 0), np.where(inside, column, 0)], 128)
    is_tie = np.minimum(np.abs(at_x % 1 - 0.5), np.abs(at_y % 1 - 0.5)) < 1e-3
    assert is_tie.mean() < 0.02
    np.testing.assert_array_equal(apply(ORIGINAL, name, 0.9)[~is_tie], expected[~is_tie])


@pytest.mark.parametrize("name", ORIGINAL)
def test_grey_images(name):
    grey = PHOTO[..., :1]
    expected = grey if name == "Color" else apply(ORIGINAL, name, 0.7, image=np.repeat(grey, 3, -1))[..., :1]
    np.testing.assert_array_equal(apply(ORIGINAL, name, 0.7, image=grey), expected)


@pytest.mark.parametrize("name", ["AutoContrast", "Equalize"])
def test_a_flat_image_stays(name):
    flat = np.full((16, 16, 3), 77, np.uint8)
    np.testing.assert_array_equal(apply(ORIGINAL, name, 1.0, image=flat), flat)


@pytest.mark.slow
def test_each_operation_is_drawn_alike_and_goes_either_way():
    image = PHOTO[:96, :96]
    results = draw(randaugment(1, 7), image.astype(np.float32), 1200)
    known = {
        (name, sign): apply(ORIGINAL, name, 0.7, sign, image)
        for name in ORIGINAL
        if name != "Cutout"
        for sign in ((1.0, -1.0) if name in GEOMETRIC else (1.0,))
    }
    counts = dict.fromkeys([*known, ("Cutout", 1.0)], 0)
    for result in results:
        found = [key for key, expected in known.items() if np.array_equal(result, expected)] or [("Cutout", 1.0)]
        assert len(found) == 1
        counts[found[0]] += 1
    expected = [len(results) / 16 / (2 if name in GEOMETRIC else 1) for name, _ in counts]
    assert scipy.stats.chisquare(list(counts.values()), expected).pvalue > 1e-3


@pytest.mark.slow
def test_layers_are_drawn_apart():
    black = sum(not result.any() for result in draw(randaugment(2, 0), PHOTO[:16, :16].astype(np.float32), 800))
    # At magnitude 0 Posterize gives black. Black remains unless Invert or Solarize (both give white) follow; white
    # turned black the other way round: Posterize second, or first and then one of the 14 others.
    assert 40 < black < 160
    same = draw(randaugment(2, 10), np.full((8, 8, 3), 50.0, np.float32), 300)
    assert len(np.unique(same.reshape(300, -1), axis=0)) > 30


@pytest.mark.parametrize("text", slow_after(1, ["timm_randaugment", "randaugment(2, 15)"]))
def test_levels_are_whole_and_the_seed_determines_them(text):
    image = PHOTO[100:132, :32] + np.float32(0.4)
    (operation,) = parse_augment((text,))
    first, second = draw(operation, image, 40, parallel=1), draw(operation, image, 40, parallel=8)
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first.reshape(40, -1), axis=0)) > 12
    np.testing.assert_array_equal(first, np.round(first))
    assert first.min() >= 0 and first.max() <= 255


def draw(operation, image, count, parallel=4):
    """What `operation` makes of `image` with seeds (3, 0), (3, 1) and so on."""
    return each(lambda number: operation(image, tf.stack([tf.constant(3, tf.int64), number])), count, parallel)


TIMM_EXPECTED = {
    "Posterize": pillow(lambda image, m, sign: PIL.ImageOps.posterize(image, 4 - int(4 * m))),
    "Solarize": pillow(lambda image, m, sign: PIL.ImageOps.solarize(image, 256 - int(256 * m))),
    **{
        name: pillow(
            lambda image, m, sign, name=name: getattr(PIL.ImageEnhance, name)(image).enhance(1 + sign * 0.9 * m)
        )
        for name in ("Color", "Contrast", "Brightness", "Sharpness")
    },
}
MEAN = (124, 116, 104)
TIMM_MOVED = {
    "Rotate": pillow(lambda image, m, sign: image.rotate(sign * 30 * m, resample=BILINEAR, fillcolor=MEAN)),
    "ShearX": pillow(lambda image, m, sign: moved(image, (1, sign * 0.3 * m, 0, 0, 1, 0), BILINEAR, MEAN)),
    "ShearY": pillow(lambda image, m, sign: moved(image, (1, 0, 0, sign * 0.3 * m, 1, 0), BILINEAR, MEAN)),
    "TranslateXRel": pillow(
        lambda image, m, sign: moved(image, (1, 0, sign * 0.45 * m * WIDTH, 0, 1, 0), BILINEAR, MEAN)
    ),
    "TranslateYRel": pillow(
        lambda image, m, sign: moved(image, (1, 0, 0, 0, 1, sign * 0.45 * m * HEIGHT), BILINEAR, MEAN)
    ),
}


@pytest.mark.parametrize("name", TIMM_EXPECTED)
def test_timm_operation_is_that_of_pillow(name):
    for m, sign in ((0.25, 1.0), (0.7, -1.0)):
        off, _ = differences(apply(TIMM_INCREASING, name, np.float32(m), sign), TIMM_EXPECTED[name](m, sign))
        assert off.max() <= (1 if name == "Sharpness" else 0)


@pytest.mark.parametrize("name", TIMM_MOVED)
def test_timm_geometry_is_that_of_pillow_off_the_border(name):
    result, expected = apply(TIMM_INCREASING, name, np.float32(0.9)), TIMM_MOVED[name](0.9, 1.0)
    off, _ = differences(result, expected)
    assert np.isin(off, (0, 1)).mean() > 0.98  # beyond the outermost centres Pillow repeats, TensorFlow fades
    np.testing.assert_array_equal(result[[0, -1]][(expected == MEAN).all(-1)[[0, -1]]][:, 0] > 0, True)


@pytest.mark.slow
def test_timm_draws_with_its_probability():
    image = PHOTO[:48, :48].astype(np.float32)
    kept = sum(np.array_equal(result, image) for result in draw(timm_randaugment(9, 0.5), image, 600))
    assert 110 < kept < 190  # a quarter: twice not applied; four standard deviations, and SolarizeAdd changes all
    never = draw(timm_randaugment(9, 0.5, probability=0.0), image, 4)
    np.testing.assert_array_equal(never, np.broadcast_to(image, never.shape))
