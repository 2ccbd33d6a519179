"""The input of an image and the map back; tests/test_golden.py compares sizes and pixels with transformers."""

import numpy as np
import pytest
from faults import for_each
from PIL import Image
from scipy import ndimage

from keras_vit.config import Preprocessing
from keras_vit.tasks.inputs import boxes_to_image, map_to_image, placements, prepare

PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "interpolation": "bilinear_antialias"}
RULES = {
    "stretch": {"size": (32, 48)},
    "nearest": {"size": 56, "multiple": 14},
    "lower_bound": {"size": 56, "multiple": 14},
    "shortest": {"size": 32, "longest": 50, "multiple": 4},
    "longest": {"size": 64},
    "square": {"size": 40},
    "windows": {"size": 24},
    "box": {"size": (32, 24)},
}


def how(sizing, **more):
    return Preprocessing(sizing=sizing, **{**RULES[sizing], **PLAIN, **more})


@pytest.fixture
def image():
    """Return an image that is red to the right and green to the bottom: colours show the place of a pixel."""
    y, x = np.mgrid[:60, :90]
    return np.stack([x * 2, y * 2, 0 * x], -1).astype("uint8")


@pytest.mark.parametrize("sizing", RULES)
def test_a_place_of_the_input_shows_the_place_of_the_image(sizing, image):
    for pixels in (image, image.transpose(1, 0, 2)[..., [1, 0, 2]]):
        inputs, places = prepare(pixels, how(sizing))
        assert len(inputs) == len(places) and inputs.shape[1:3] == places[0].size
        for shown, place in zip(inputs, places, strict=True):
            rows, columns = np.mgrid[: place.size[0], : place.size[1]]
            half = 0.0 if sizing == "box" else 0.5  # centres or corners
            x, y = np.moveaxis(place.to_image(np.stack([columns, rows], -1) + half) - half, -1, 0)
            inside = (x > 3) & (y > 3) & (x < pixels.shape[1] - 4) & (y < pixels.shape[0] - 4)
            assert inside.mean() > 0.2
            seen = 255 * shown[inside]
            np.testing.assert_allclose(seen[:, 0], 2 * x[inside], atol=2.5)
            np.testing.assert_allclose(seen[:, 1], 2 * y[inside], atol=2.5)
            there = np.array([[3.0, 5.0, 20.0, 31.0]])
            np.testing.assert_allclose(place.to_image(place.to_input(there)), there, rtol=1e-9)


def test_pixels_are_those_of_pillow_and_padding_is_black_or_the_mean(image):
    inputs, (place,) = prepare(image, how("longest", mean=(0.5,) * 3))
    expected = np.asarray(Image.fromarray(image).resize((64, 43), Image.Resampling.BILINEAR)) / 255 - 0.5
    assert place.resized == (43, 64)  # 42.67, half up
    np.testing.assert_allclose(inputs[0, :43], expected, atol=1e-6)
    assert (inputs[0, 43:] == -0.5).all()
    padded, _ = prepare(image, Preprocessing(pad=True, size=64, **{**PLAIN, "mean": (0.5,) * 3}))
    np.testing.assert_allclose(padded[0, :43], expected, atol=1e-6)
    assert np.abs(padded[0, 43:]).max() < 1e-6


def test_a_square_is_filtered_and_interpolated_as_scipy_does(image):
    inputs, _ = prepare(image, how("square"))
    square = np.zeros((90, 90, 3))
    square[:60] = image / 255
    sigma = (90 / 40 - 1) / 2
    smooth = ndimage.gaussian_filter(square, (sigma, sigma, 0), mode="mirror")
    expected = ndimage.zoom(smooth, (40 / 90, 40 / 90, 1), order=1, mode="mirror", grid_mode=True)
    np.testing.assert_allclose(inputs[0], expected, atol=1e-5)


def test_windows_cover_the_longer_side():
    places = placements(how("windows"), (60, 150))
    assert [place.offset for place in places] == [(0, 0), (-18, 0), (-36, 0)] and places[0].size == (24, 24)
    assert [place.offset for place in placements(how("windows"), (150, 60))] == [(0, 0), (0, -18), (0, -36)]
    assert len(placements(how("windows"), (50, 50))) == 1


def test_persons_and_no_person(image):
    inputs, places = prepare(image, how("box"), [[10, 10, 30, 50], [-40, -40, -20, -20]])
    assert inputs[0].any() and not inputs[1].any()  # the second is outside the image
    width = 1.25 * 40 * 24 / 32
    np.testing.assert_allclose(places[0].to_image(np.zeros(2)), [20 - width / 2, 30 - 25])
    np.testing.assert_allclose(places[0].to_image(np.array([23.0, 31])), [20 + width / 2, 30 + 25])
    assert prepare(image, how("box"), [])[0].shape == (0, 32, 24, 3)
    np.testing.assert_allclose(placements(how("box"), (60, 90))[0].to_image(np.array([11.5, 15.5])), [45, 30])


def test_maps_and_boxes_in_pixels_of_the_image(image):
    for rule in ("stretch", "longest"):
        (place,) = placements(how(rule), (60, 90))
        y, x = np.mgrid[: place.size[0], : place.size[1]] + 0.5
        found = map_to_image(x / place.scale[0], place, (60, 90))
        np.testing.assert_allclose(found[:, 3:-3], np.tile(np.arange(90) + 0.5, (60, 1))[:, 3:-3], atol=0.05)
        height, width = place.size
        edges = place.to_input(np.array([10.0, 20, 40, 60])) / np.array([width, height] * 2)
        box = np.array([[*(edges[:2] + edges[2:]) / 2, *(edges[2:] - edges[:2])]])
        np.testing.assert_allclose(boxes_to_image(box, place), [[10, 20, 40, 60]], rtol=1e-9)


def test_one_pixel_and_one_channel():
    for sizing in RULES:
        inputs, _ = prepare(np.full((1, 1, 3), 51, "uint8"), how(sizing))
        assert np.isfinite(inputs).all() and (sizing == "box" or inputs.max() == pytest.approx(0.2))
    grey = {"mean": (0.0,), "std": (1.0,)}
    assert prepare(np.zeros((5, 5, 3), "uint8"), how("stretch", **grey))[0].shape == (1, 32, 48, 1)


@for_each(
    "make, message",
    [
        (lambda: placements(how("windows"), (1, 90_000)), r"at most 16777216 pixels after the resize; got 90000 x 1"),
        (lambda: placements(how("box"), (9, 9), [[3, 3, 2, 5]]), "left < right and top < bottom; got .3.0, 3.0, 2.0"),
        (lambda: placements(how("box"), (9, 9), [[3, 3, 2]]), r"boxes must be numbers of shape \(1, 4\)"),
        (lambda: placements(Preprocessing(size=256, crop=224), 9), "preprocessing must have no crop"),
        (lambda: prepare(np.zeros((4, 4, 2)), how("stretch")), r"image must have shape \(height, width, 1 or 3\)"),
        (lambda: prepare(np.zeros((4, 4)), how("stretch", interpolation="area")), "must be bilinear or one of nearest"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
