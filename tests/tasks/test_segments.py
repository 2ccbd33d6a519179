"""Segmentation by EoMT; tests/test_golden.py compares it with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.drawing import resize_map
from keras_vit.tasks.inputs import Placement
from keras_vit.tasks.segments import (
    LabelMap,
    Segments,
    instances,
    label_map,
    panoptic,
    ranked_instances,
    semantic_scores,
)

WHOLE = Placement((1.0, 1.0), (0.0, 0.0), (4, 4), (4, 4))


def test_stuff_is_one_segment_and_nothing_is_none():
    masks = np.full((4, 4, 2), -9.0)
    masks[:, :2, 0], masks[:, 2:, 1] = 9, 9
    classes = np.array([[9.0, 0, 0], [9, 0, 0]])
    assert panoptic(masks, classes, WHOLE, 4).labels.tolist() == [0, 0]
    one = panoptic(masks, classes, WHOLE, 4, stuff=[0], names=["sky", "cat"])
    assert one.names == ("sky",) and not one.ids.any()
    for way in (panoptic, instances):
        nothing = way(masks, -classes, WHOLE, 4)
        assert (nothing.ids == -1).all() and nothing.to_json()["segments"] == []
        assert not nothing.draw().any()


def test_a_segment_is_kept_by_the_pixels_that_its_query_owns_inside_its_mask_or_not():
    """The first query owns its mask and, with a low mask, two columns of no other one: 12 of 4 pixels are its own."""
    masks = np.full((4, 4, 2), -1.0)
    masks[:, 0, 0] = masks[:, 3, 1] = 9
    masks[:, 3, 0] = -9
    classes = np.array([[9.0, 0, 0], [0, 5, 0]])
    assert panoptic(masks, classes, WHOLE, 4, overlap=0.99).labels.tolist() == [0, 1]


def test_best_pairs_of_query_and_class():
    rng = np.random.default_rng(0)
    masks, logits = rng.normal(size=(4, 4, 3)), rng.normal(size=(3, 4))
    masks[..., 1] = -1  # an empty mask
    labels, scores, found = ranked_instances(masks, logits, WHOLE, 4, 7)
    powers = np.exp(logits)
    pairs = [(powers[q, c] / powers[q].sum(), q, c) for q in range(3) for c in range(3)]
    for n, (share, query, label) in enumerate(sorted(pairs, reverse=True)[:7]):
        inside = masks[..., query][masks[..., query] > 0]
        score = share * np.mean(1 / (1 + np.exp(-inside))) if inside.size else 0.0
        assert labels[n] == label and scores[n] == pytest.approx(score, abs=1e-5)
        np.testing.assert_array_equal(found[n], masks[..., query] > 0)
    assert len(labels) == len(scores) == len(found) == 7 and len(ranked_instances(masks, logits, WHOLE, 4, 100)[0]) == 9


def test_a_label_map_is_made_in_strips():
    scores = np.random.default_rng(0).random((3, 5, 4))
    found = label_map(scores, (150, 7)).labels
    np.testing.assert_array_equal(found, resize_map(scores, (150, 7)).argmax(-1))


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
        (
            lambda: instances(_MASKS, _CLASSES[:1], WHOLE, 4),
            r"class_logits must be numbers of shape \(2, classes \+ 1\)",
        ),
        (lambda: instances(_MASKS, _CLASSES, WHOLE, 4, 2), r"threshold must be a number in \[0, 1\); got threshold=2"),
        (
            lambda: panoptic(_MASKS, _CLASSES, WHOLE, 4, overlap=1),
            r"overlap must be a number in \[0, 1\); got overlap=1",
        ),
        (lambda: panoptic(_MASKS, _CLASSES, WHOLE, 4, names=["a"]), "names must be None or a sequence of at least 2"),
        (
            lambda: semantic_scores(_MASKS[None], _CLASSES[None], [WHOLE] * 2),
            r"mask_logits must be numbers of shape \(2, ",
        ),
        (lambda: LabelMap([[0.5]]), r"labels must be integers \(height, width\) from -1; got float64"),
        (lambda: Segments([[1]], [3], [0.5]), "must belong to 1 labels; got 1 scores, names=None and ids up to 1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
