"""Crops of persons and keypoints from heatmaps, against transformers and the ViTPose authors."""

import json

import numpy as np
import pytest
from conftest import TESTS
from faults import for_each
from golden_arrays import stored_in

from keras_vit.tasks.keypoints import Keypoints, crop, flip_average, heatmap_peaks, keypoints, person_region

CASE = TESTS / "golden_tasks" / "vitpose_post"


@pytest.fixture(scope="module")
def golden():
    return stored_in(CASE / "io.npz"), json.loads((CASE / "case.json").read_text())


@pytest.mark.parametrize("number", [0, 1])
def test_golden(number, golden):
    arrays, case = golden
    size, atol = tuple(case["network_size"]), case["tolerance"]["per_key_atol"]

    def compare(found, key, tolerance_of=None):
        np.testing.assert_allclose(found, arrays[key][number], rtol=0, atol=atol[tolerance_of or key], err_msg=key)

    region = person_region(arrays["boxes"][number], size)
    compare(region.centre, "centers")
    compare(region.extent / 200, "scales")
    pixels = crop(arrays["image"], region, size)
    compare((pixels / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225), "crops")
    heatmaps = arrays["heatmaps"][number]
    compare(heatmap_peaks(heatmaps, "transformers")[0], "refined_xy")
    compare(heatmap_peaks(heatmaps, "authors")[0], "other_refined_xy_sigma2", "refined_xy")
    found = keypoints(heatmaps, region, "transformers")
    compare(found.xy, "keypoints")
    compare(found.scores, "scores")


def test_the_blur_of_the_authors_finds_the_centre_of_a_gaussian():
    y, x = np.mgrid[:64, :48]
    places = np.array([[20.3, 30.8], [11.5, 40.25]])
    maps = np.stack([np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 8) for cx, cy in places], -1)
    np.testing.assert_allclose(heatmap_peaks(maps)[0], places, atol=0.01)


def test_the_flip_test_of_a_mirrored_answer_changes_nothing():
    heatmaps = np.random.default_rng(0).random((2, 4, 3, 5))
    mirrored = heatmaps[..., ::-1, [0, 2, 1, 4, 3]]
    np.testing.assert_array_equal(flip_average(heatmaps, mirrored, [(1, 2), (3, 4)]), heatmaps)


def test_drawing_and_json():
    image = np.zeros((50, 40, 3), "uint8")
    answer = Keypoints([[10, 20], [30, 40]], [0.5, 0.25], ("nose", "eye"))
    drawn = answer.draw(image)
    assert drawn.dtype == np.uint8 and drawn[20, 10].any() and not drawn[30:].any() and not image.any()
    assert json.loads(json.dumps(answer.to_json()))[1] == {"x": 30, "y": 40, "score": 0.25, "name": "eye"}


_MAPS = np.ones((4, 3, 2))


@for_each(
    "make, message",
    [
        (lambda: person_region([0, 0, 0, 5]), r"box must have a width and height above 0; got \[0, 0, 0, 5\]"),
        (lambda: person_region([0, 0, 5]), r"box must be numbers of shape \(4\)"),
        (lambda: heatmap_peaks(_MAPS, "dark"), "blur must be one of 'authors', 'transformers'; got blur='dark'"),
        (lambda: heatmap_peaks(_MAPS[0]), r"heatmaps must be numbers of shape \(rows, columns, keypoints\)"),
        (lambda: flip_average(_MAPS, _MAPS[1:], []), r"flipped must have the shape \(4, 3, 2\) of heatmaps"),
        (lambda: flip_average(_MAPS, _MAPS, [(0, 2)]), "pairs must be an integer of at least 0 and at most 1"),
        (lambda: Keypoints([[1, 2]], [0.5, 0.5]), r"xy must be numbers of shape \(2, 2\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
