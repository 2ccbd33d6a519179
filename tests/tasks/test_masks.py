"""Masks in pixels of the image; tests/test_golden.py compares them with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.inputs import Placement
from keras_vit.tasks.masks import Masks, mask_stability, masks_in_image

WHOLE = Placement((1.0, 1.0), (0.0, 0.0), (4, 6), (6, 6))


def test_the_padding_is_cut_off():
    logits = np.full((1, 6, 6), -1.0)
    logits[0, 1:3, 2:4] = logits[0, 4:] = 1
    found = masks_in_image(logits, [0.5], WHOLE, (4, 6), names=["cat"])
    assert found.masks.shape == (1, 4, 6) and found.masks.sum() == 4 and found.boxes.tolist() == [[2, 1, 3, 2]]
    assert not masks_in_image(logits, [0.5], WHOLE, (4, 6), 2.0).masks.any()


def test_an_empty_mask_has_no_stability_and_no_box():
    assert mask_stability(np.full((1, 3, 3), -2.0)) == 0
    assert Masks(np.zeros((2, 3, 3), bool), [0, 0]).boxes.tolist() == [[0] * 4] * 2
    nothing = Masks(np.zeros((0, 3, 3), bool), [])
    assert nothing.boxes.shape == (0, 4) and nothing.to_json()["masks"] == [] and not nothing.draw().any()


def test_the_smaller_of_two_masks_is_drawn_on_top():
    masks = np.zeros((2, 2, 3), bool)
    masks[0, 0, 0] = masks[1, :, :2] = True
    drawn = Masks(masks, [0.5, 0.25], ("a", "b")).draw(np.full((2, 3, 3), 9, "uint8"))
    assert (drawn[:, 2] == 9).all() and (drawn[0, 0] != drawn[1, 0]).any() and (drawn[0, 1] == drawn[1, 0]).all()
    found = json.loads(json.dumps(Masks(masks, [0.5, 0.25], ("a", "b")).to_json()))
    assert found["masks"][1] == {"score": 0.25, "box": [0, 0, 1, 1], "name": "b", "runs": [[1, 2], [0, 1]] * 2}


@for_each(
    "make, message",
    [
        (lambda: mask_stability(np.ones((1, 3, 3)), -1), "offset must be a finite number above 0; got offset=-1"),
        (lambda: Masks(np.ones((1, 3, 3)), [1]), r"masks must be bool \(masks, height, width\); got float64"),
        (lambda: Masks(np.ones((1, 3, 3), bool), [1, 2]), r"scores must be numbers of shape \(1\)"),
        (lambda: masks_in_image(np.ones((3, 3)), [1], WHOLE, 4), r"logits must be numbers of shape \(masks, rows"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
