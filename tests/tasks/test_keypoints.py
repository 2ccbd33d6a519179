"""Keypoints from heatmaps; tests/test_golden.py compares them and the crops of persons with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.keypoints import Keypoints, flip_average, heatmap_peaks


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
    answer = Keypoints([[[10, 20], [30, 40]]], [[0.5, 0.25]], ("nose", "eye"))
    drawn = answer.draw(image)
    assert drawn.dtype == np.uint8 and drawn[20, 10].any() and not drawn[30:].any() and not image.any()
    assert json.loads(json.dumps(answer.to_json()))[0][1] == {"x": 30, "y": 40, "score": 0.25, "name": "eye"}


_MAPS = np.ones((4, 3, 2))


@for_each(
    "make, message",
    [
        (lambda: heatmap_peaks(_MAPS, "dark"), "blur must be one of 'authors', 'transformers'; got blur='dark'"),
        (lambda: heatmap_peaks(_MAPS[0]), r"heatmaps must be numbers of shape \(rows, columns, keypoints\)"),
        (lambda: flip_average(_MAPS, _MAPS[1:], []), r"flipped must have the shape \(4, 3, 2\) of heatmaps"),
        (lambda: flip_average(_MAPS, _MAPS, [(0, 2)]), "pairs must be an integer of at least 0 and at most 1"),
        (lambda: Keypoints([[[1, 2]]], [[0.5, 0.5]]), r"xy must be numbers of shape \(1, 2, 2\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
