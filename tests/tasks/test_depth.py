"""Depth maps; tests/test_golden.py compares them with transformers."""

import json

import numpy as np
import pytest
from faults import for_each

from keras_vit.tasks.depth import DepthMap


def test_near_is_bright_in_both_units():
    ramp = np.tile(np.linspace(1, 2, 8), (4, 1))
    image = np.full((4, 8, 3), 128, "uint8")
    for unit, brightest in (("metres", 0), ("disparity", 7)):
        answer = DepthMap(ramp, unit)
        for drawn in (answer.draw(), answer.draw(image)):
            assert drawn.dtype == np.uint8 and drawn.shape == (4, 8, 3)
            assert drawn.sum(-1)[0].argmax() == brightest
        assert json.loads(json.dumps(answer.to_json()))["values"] == answer.values.tolist()
    assert DepthMap(np.ones((2, 3)), "metres").draw().shape == (2, 3, 3)


@for_each(
    "make, message",
    [
        (lambda: DepthMap(np.ones((2, 2, 1)), "metres"), r"shape \(height, width\); got float64 of shape \(2, 2, 1\)"),
        (lambda: DepthMap(np.full((2, 2), np.nan), "metres"), "values must be finite; got 4 numbers"),
        (lambda: DepthMap(np.ones((2, 2)), "feet"), "unit must be one of 'metres', 'disparity'; got unit='feet'"),
        (lambda: DepthMap(np.ones((2, 2)), "metres").draw(np.ones((3, 2))), r"image must have the size \(2, 2\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
