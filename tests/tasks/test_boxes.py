"""Boxes and sizes of the input of YOLOS; tests/test_golden.py compares them with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.boxes import Boxes, detected_boxes, detection_input_size


def test_boxes_have_the_names_of_their_classes():
    logits = np.array([[0.0, 9, 0], [9, 0, 0], [0, 0, 9]])
    assert detected_boxes(logits, np.ones((3, 4)), 8, names=["cat", "dog"]).names == ("dog", "cat")


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
    nothing = detected_boxes(np.zeros((2, 3)), np.zeros((2, 4)), 8, 0.9)
    assert nothing.boxes.shape == (0, 4) and nothing.to_json() == []
    assert not nothing.draw(np.zeros((8, 8))).any()


@for_each(
    "make, message",
    [
        (lambda: detection_input_size((4, 0)), "size must be one positive integer or a pair"),
        (lambda: detection_input_size(4, longest=0), "longest must be an integer of at least 1; got longest=0"),
        (lambda: detected_boxes(np.ones((3, 1)), np.ones((3, 4)), 8), "at least two columns"),
        (lambda: detected_boxes(np.ones((3, 2)), np.ones((2, 4)), 8), r"boxes must be numbers of shape \(3, 4\)"),
        (lambda: detected_boxes(np.ones((3, 2)), np.ones((3, 4)), 8, 1.0), r"threshold must be a number in \[0, 1\)"),
        (lambda: detected_boxes(np.ones((3, 3)), np.ones((3, 4)), 8, 0, ["a"]), "a sequence of at least 2 strings"),
        (lambda: Boxes(np.ones((1, 4)), [0.5], [1, 2]), "one value for each of 1 scores"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
