"""Shapes and value ranges of arrays: what is taken as it is, what is refused and what the refusal says."""

import numpy as np
import pytest

from keras_vit.data import images

RANKS = (2, 3, 4)
IMAGE = np.linspace(0.0, 1.0, 48, dtype=np.float32).reshape(4, 4, 3)


def levels(array, value_range=None):
    checked, value_range = images.check_array("images", array, value_range, RANKS)
    return images.to_levels(checked, value_range)


def test_uint8_is_taken_as_it_is():
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert levels(image).dtype == np.uint8
    np.testing.assert_array_equal(levels(image), image)


def test_each_range_gives_the_same_levels():
    expected = IMAGE * 255.0
    given = [
        (IMAGE, None),
        (IMAGE.astype(np.float64), None),
        (IMAGE * 255.0, (0, 255)),
        (IMAGE * 2.0 - 1.0, (-1, 1)),
        (np.round(IMAGE * 65535).astype(np.uint16), None),
        (np.round(IMAGE * 2**31).astype(np.int64), (0, 2**31)),
    ]
    for array, value_range in given:
        result = levels(array, value_range)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, atol=0.005, err_msg=str(array.dtype))


def test_rounding_errors_at_the_ends_are_clipped():
    result = levels(np.float32([[-1e-6, 1.0 + 1e-6]]))
    np.testing.assert_array_equal(result[..., 0], [[0.0, 255.0]])


def test_a_plain_grey_image_gets_a_channel():
    assert levels(np.zeros((4, 5), np.uint8)).shape == (4, 5, 1)


REFUSED = [
    (IMAGE * 255, None, ValueError, r"from 0 to 1; they range from 0 to 255: pass value_range=\(0, 255\)"),
    (IMAGE * 2 - 1, None, ValueError, r"they range from -1 to 1: pass value_range=\(-1, 1\)"),
    (IMAGE * 900, None, ValueError, "range from 0 to 900: pass their actual value_range"),
    (IMAGE * 300, (0, 255), ValueError, "from 0 to 255; they range from 0 to 300"),
    (IMAGE, (0, 255), ValueError, "from 0 to 255 for this value_range.*0 to 1 and are probably scaled already"),
    (
        np.full((2, 2), 300, np.uint16),
        (0, 255),
        ValueError,
        r"range from 300 to 300: pass value_range=\(0, 65535\)",
    ),
    (np.float32([[0.5, np.nan]]), None, ValueError, "finite"),
    (np.float32([[0.5, np.inf]]), None, ValueError, "finite"),
    (np.zeros((2, 2), np.int64), None, ValueError, "or come with value_range=.*; got int64"),
    (np.zeros((2, 2), bool), None, TypeError, r"got bool: convert with mask.astype\('uint8'\) \* 255"),
    (np.zeros((2, 2), complex), None, TypeError, "array of numbers; got ndarray"),
    (object(), None, TypeError, "a path, bytes, a PIL image or an array.*got object"),
    (None, None, TypeError, "got NoneType"),
    (np.zeros(5, np.uint8), None, ValueError, r"\(height, width\) or .*; got \(5,\)"),
    (np.zeros((1, 1, 2, 2, 3), np.uint8), None, ValueError, r"got \(1, 1, 2, 2, 3\)"),
    (np.zeros((0, 5, 3), np.uint8), None, ValueError, r"no side of length 0; got shape \(0, 5, 3\)"),
    (np.zeros((0, 4, 4, 3), np.uint8), None, ValueError, r"no side of length 0; got shape \(0, 4, 4, 3\)"),
    (np.zeros((3, 8, 8), np.uint8), None, ValueError, "channels on the last axis, not before the height; got shape"),
    (IMAGE, (1, 0), ValueError, r"darkest, brightest.*got \(1, 0\)"),
    (IMAGE, 255, ValueError, "got 255"),
    (IMAGE, (0, np.inf), ValueError, "got .*inf"),
]


def test_refusals_say_what_came():
    for array, value_range, error, message in REFUSED:
        with pytest.raises(error, match="(?s)" + message):
            print(message, levels(array, value_range))  # shown where nothing is raised


def test_a_black_image_on_0_to_255_is_no_contradiction():
    np.testing.assert_array_equal(levels(np.zeros((2, 2), np.float32), (0, 255)), np.zeros((2, 2, 1)))


def test_only_the_ranks_asked_for():
    with pytest.raises(ValueError, match=r"\(height, width, channels\); got \(1, 2, 2, 3\)"):
        images.check_array("images[0]", np.zeros((1, 2, 2, 3), np.uint8), None, (2, 3))
