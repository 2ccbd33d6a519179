"""Segmentation by EoMT; tests/test_golden.py compares it with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.segments import (
    LabelMap,
    Segments,
    instances,
    panoptic,
    semantic,
    unpadded_size,
    windows,
)


def test_stuff_is_one_segment_and_nothing_is_none():
    masks = np.full((4, 4, 2), -9.0)
    masks[:, :2, 0], masks[:, 2:, 1] = 9, 9
    classes = np.array([[9.0, 0, 0], [9, 0, 0]])
    assert panoptic(masks, classes, 4, 4).labels.tolist() == [0, 0]
    one = panoptic(masks, classes, 4, 4, stuff={0}, names=["sky", "cat"])
    assert one.names == ("sky",) and not one.ids.any()
    for way in (panoptic, instances):
        nothing = way(masks, -classes, 4, 4)
        assert (nothing.ids == -1).all() and nothing.to_json()["segments"] == []
        assert not nothing.draw().any()


def test_sizes_of_one_window_and_of_padding():
    assert windows(50, 24) == ((24, 24), [(0, 24)])
    assert unpadded_size((40, 30), 32) == (32, 24) and unpadded_size((1, 900), 32) == (1, 32)


def test_drawings_and_json():
    image = np.full((2, 3, 3), 200, "uint8")
    answer = Segments([[0, 0, -1], [1, 1, -1]], [7, 2], [0.5, 0.25], ("cat", "sky"))
    drawn = answer.draw(image)
    assert drawn.dtype == np.uint8 and (drawn[:, 2] == 200).all() and (drawn[0, 0] != drawn[1, 0]).any()
    assert json.loads(json.dumps(answer.to_json())) == {
        "height": 2,
        "width": 3,
        "segments": [
            {"id": 0, "label": 7, "score": 0.5, "area": 2, "name": "cat"},
            {"id": 1, "label": 2, "score": 0.25, "area": 2, "name": "sky"},
        ],
        "runs": [[0, 2], [-1, 1], [1, 2], [-1, 1]],
    }
    labels = LabelMap([[3, 3], [0, 0]], ("a", "b", "c", "d"))
    assert labels.draw().shape == (2, 2, 3)
    assert json.loads(json.dumps(labels.to_json()))["runs"] == [[3, 2], [0, 2]]


_MASKS, _CLASSES = np.zeros((4, 4, 2)), np.zeros((2, 3))


@for_each(
    "make, message",
    [
        (lambda: windows((2, 0), 24), "size must be one positive integer or a pair"),
        (lambda: instances(_MASKS, _CLASSES[:1], 4, 4), r"class_logits must be numbers of shape \(2, classes \+ 1\)"),
        (lambda: instances(_MASKS, _CLASSES, 4, 4, 2), r"threshold must be a number in \[0, 1\); got threshold=2"),
        (lambda: panoptic(_MASKS, _CLASSES, 4, 4, overlap=1), r"overlap must be a number in \[0, 1\); got overlap=1"),
        (lambda: panoptic(_MASKS, _CLASSES, 4, 4, names=["a"]), "names must be None or a sequence of at least 2"),
        (lambda: semantic(_MASKS[None], _CLASSES[None], (4, 8), 4), r"mask_logits must be numbers of shape \(2, rows"),
        (lambda: LabelMap([[0.5]]), r"labels must be integers \(height, width\) from -1; got float64"),
        (lambda: Segments([[1]], [3], [0.5]), "must belong to 1 labels; got 1 scores, names=None and ids up to 1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
