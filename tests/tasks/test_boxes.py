"""Boxes of detectors; tests/test_golden.py compares them with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.boxes import Boxes, detected_boxes, example_boxes
from keras_vit.tasks.inputs import Placement

WHOLE = Placement((1.0, 1.0), (0.0, 0.0), (8, 8), (8, 8))


def test_boxes_have_the_names_of_their_classes():
    scores = np.array([[0.1, 0.9], [0.8, 0.1], [0.2, 0.3]])
    found = detected_boxes(scores, np.ones((3, 4)), WHOLE, names=["cat", "dog"])
    assert found.names == ("dog", "cat") and found.best(1).names == ("dog",) and found.best(None) is found
    assert found.best(5).scores.tolist() == sorted(found.scores, reverse=True)


def test_examples_drop_boxes_that_overlap():
    boxes = [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.45], [0.1, 0.1, 0.1, 0.1]]
    found = example_boxes([[0.8], [0.9], [0.2]], boxes, WHOLE)
    np.testing.assert_allclose(found.scores, [1, (0.2 - 0.09) / 0.81], rtol=1e-6)
    assert example_boxes([[0.8], [0.9], [0.2]], boxes, WHOLE, 0.95).boxes.shape == (0, 4)


def test_a_box_is_drawn_on_its_edges():
    image = np.zeros((60, 50, 3), "uint8")
    drawn = Boxes([[10, 20, 30, 50]], [0.5], [1]).draw(image)
    assert drawn.dtype == np.uint8 and not image.any()
    assert drawn[49, 10:30].any(-1).all() and drawn[20:50, 10].any(-1).all()
    assert not drawn[50:].any() and not drawn[:20].any() and not drawn[:, :10].any()
    assert Boxes([[-5, -5, 200, 3], [4, 4, 2, 2]], [0.5, 0.6], [0, 3], ("x", "y")).draw(image).shape == image.shape


def test_json():
    found = json.loads(json.dumps(Boxes([[1, 2, 3, 4]], [0.5], [1], ("cat",)).to_json()))
    assert found == [{"box": [1, 2, 3, 4], "score": 0.5, "label": 1, "name": "cat"}]
    nothing = detected_boxes(np.zeros((2, 3)), np.zeros((2, 4)), WHOLE, 0.9)
    assert nothing.boxes.shape == (0, 4) and nothing.to_json() == []
    assert not nothing.draw(np.zeros((8, 8))).any()


@for_each(
    "make, message",
    [
        (lambda: detected_boxes(np.ones((3, 2)), np.ones((2, 4)), WHOLE), r"boxes must be numbers of shape \(3, 4\)"),
        (lambda: detected_boxes(np.ones((3, 2)), np.ones((3, 4)), WHOLE, 1.0), r"threshold must be a number in \[0, 1"),
        (lambda: detected_boxes(np.ones((3, 2)), np.ones((3, 4)), WHOLE, 0, ["a"]), "a sequence of at least 2 strings"),
        (lambda: example_boxes([[0.5]], [[0.5] * 4], WHOLE, overlap=1), "overlap must be a number"),
        (lambda: Boxes(np.ones((1, 4)), [0.5], [1]).best(0), "top must be an integer of at least 1; got top=0"),
        (lambda: Boxes(np.ones((1, 4)), [0.5], [1, 2]), "one value for each of 1 scores"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
