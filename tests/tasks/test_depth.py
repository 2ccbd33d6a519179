"""Sizes of the input of depth models and depth in pixels, against transformers and the Depth Anything authors."""

import json

import numpy as np
import pytest
from conftest import TESTS
from faults import for_each
from golden_arrays import stored_in

from keras_vit.config import Preprocessing
from keras_vit.data.images import preprocess
from keras_vit.tasks.depth import DepthMap, depth_input_size, depth_map

CASE = TESTS / "golden_tasks" / "depth_sizes"


@pytest.fixture(scope="module")
def golden():
    return stored_in(CASE / "io.npz"), json.loads((CASE / "case.json").read_text())


@for_each("rule, key", [("nearest", "keep_true"), ("stretch", "keep_false"), ("lower_bound", "lower_bound")])
def test_sizes(rule, key, golden):
    arrays, case = golden
    target, step = tuple(case["target_size"]), case["multiple"]
    found = [depth_input_size(tuple(size), target, step, rule) for size in arrays["input_sizes"].tolist()]
    np.testing.assert_array_equal(found, arrays[f"output_sizes_{key}"])


def test_pixels_of_the_input(golden):
    arrays, case = golden
    size = depth_input_size(arrays["image"].shape[:2], tuple(case["image_target"]))
    how = Preprocessing(size=size, interpolation="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    atol = case["tolerance"]["per_key_atol"]["pixel_values"]
    np.testing.assert_allclose(preprocess(arrays["image"], how)[0], arrays["pixel_values"], rtol=0, atol=atol)


def test_depth_in_pixels(golden):
    arrays, case = golden
    for number, size in enumerate(case["depth_target_sizes"]):
        found = depth_map(arrays["depth"][number], tuple(size), "metres").values
        atol = case["tolerance"]["per_key_atol"][f"depth_resized_{number}"]
        np.testing.assert_allclose(found, arrays[f"depth_resized_{number}"], rtol=0, atol=atol)


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
        (lambda: depth_input_size(0), "size must be one positive integer"),
        (lambda: depth_input_size(5, multiple=0), "multiple must be an integer of at least 1; got multiple=0"),
        (lambda: depth_input_size(5, rule="keep"), "rule must be one of 'nearest', 'lower_bound', 'stretch'"),
        (lambda: DepthMap(np.ones((2, 2, 1)), "metres"), r"shape \(height, width\); got float64 of shape \(2, 2, 1\)"),
        (lambda: DepthMap(np.full((2, 2), np.nan), "metres"), "values must be finite; got 4 numbers"),
        (lambda: DepthMap(np.ones((2, 2)), "feet"), "unit must be one of 'metres', 'disparity'; got unit='feet'"),
        (lambda: DepthMap(np.ones((2, 2)), "metres").draw(np.ones((3, 2))), r"image must have the size \(2, 2\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
