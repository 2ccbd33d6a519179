"""Sizes of the inputs of task models; tests/test_golden.py compares them with transformers."""

import pytest
from faults import for_each

from keras_vit.config import Preprocessing


@for_each(
    "fields, size, expected",
    [
        ({"sizing": "stretch", "size": (30, 50), "multiple": 16}, (7, 9), (32, 48)),
        ({"sizing": "nearest", "size": 56, "multiple": 14}, (40, 56), (42, 56)),  # 1 is nearer to 1 than 1.4
        ({"sizing": "nearest", "size": 56, "multiple": 14}, (1, 5000), (14, 56)),
        ({"sizing": "lower_bound", "size": 56, "multiple": 14}, (40, 56), (56, 84)),  # 78.4 to 84
        ({"sizing": "shortest", "size": 32, "longest": 50, "multiple": 4}, (60, 90), (32, 48)),
        ({"sizing": "shortest", "size": 32, "longest": 40}, (60, 90), (27, 40)),  # the longer side decides
        ({"sizing": "shortest", "size": 32}, (90, 60), (48, 32)),
        ({"sizing": "longest", "size": 64}, (60, 90), (43, 64)),
        ({"sizing": "longest", "size": 64}, (1, 900), (1, 64)),
        ({"sizing": "square", "size": 40}, (60, 90), (40, 40)),
        ({"pad": True, "size": 64}, (60, 90), (43, 64)),
        ({"size": 64}, (60, 90), (64, 64)),
    ],
)
def test_sizes(fields, size, expected):
    assert Preprocessing(**fields).resized(size) == expected


def test_another_size_is_exact_for_rules_with_inputs_of_several_sizes():
    depth = Preprocessing(sizing="nearest", size=518, multiple=14)
    assert depth.at(56) == Preprocessing(size=56) and depth.native(14).sizing is None
    assert Preprocessing(sizing="longest", size=640).at(64).sizing == "longest"
    assert Preprocessing.from_dict(depth.to_dict()) == depth


@for_each(
    "fields, message",
    [
        ({"sizing": "fit"}, "sizing must be one of 'stretch', 'nearest', 'lower_bound', 'shortest', 'longest', "),
        ({"sizing": "square", "crop": 8}, "sizing keeps the whole image, so crop, .* must not be set; got sizing='squ"),
        ({"sizing": "square", "longest": 8}, "longest needs sizing='shortest'; got longest=8, sizing='square'"),
        ({"sizing": "square", "multiple": 8}, "multiple needs another sizing; got multiple=8, sizing='square'"),
        ({"sizing": "stretch", "multiple": 0}, "multiple must be an integer of at least 1"),
    ],
)
def test_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**fields)
