"""ResNetStage: its units one after the other."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers.bottleneck import BottleneckUnit, PreActivationUnit, ResNetStage

ORDERS = {"post_norm": BottleneckUnit, "pre_activation": PreActivationUnit}
ARGUMENTS = {
    "order": "post_norm",
    "width": 32,
    "num_units": 3,
    "strides": 2,
    "gn_epsilon": 1e-4,
    "std_epsilon": 1e-3,
    "std_form": "variance",
}


@pytest.mark.parametrize("order", ORDERS)
def test_units_follow_each_other_and_the_first_alone_has_the_stride(order, randomise):
    stage = ResNetStage(**{**ARGUMENTS, "order": order})
    images = np.random.default_rng(1).normal(size=(2, 7, 6, 64)).astype("float32")
    stage.build(images.shape)
    weights = randomise(stage)
    expected = images
    for index, strides in enumerate((2, 1, 1), start=1):
        unit = ORDERS[order](32, strides, 1e-4, 1e-3, "variance", name="unit")
        unit.build(expected.shape)
        for weight in unit.weights:
            weight.assign(weights.pop(weight.path.replace("unit/", f"unit_{index:02d}/")))
        expected = keras.ops.convert_to_numpy(unit(expected))
    assert not weights
    output = keras.ops.convert_to_numpy(stage(images))
    assert output.shape == stage.compute_output_shape(images.shape) == (2, 4, 3, 128)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def test_shortcuts_are_convolutions_in_the_first_unit_only(initial):
    stage = ResNetStage(**{**ARGUMENTS, "strides": 1})
    stage.build((None, 4, 4, 64))
    found = {path for path in initial(stage) if "shortcut" in path}
    assert found == {f"unit_01/shortcut_{name}" for name in ("conv/kernel", "norm/gamma", "norm/beta")}


def test_every_argument_comes_back_in_the_config():
    config = ResNetStage(**ARGUMENTS).get_config()
    assert {name: config[name] for name in ARGUMENTS} == ARGUMENTS


@for_each(
    ("changes", "message"),
    [
        ({"order": "post"}, "order must be one of 'post_norm', 'pre_activation'; got order='post'"),
        ({"num_units": 0}, "num_units must be an integer of at least 1; got num_units=0"),
        ({"strides": 1.5}, "strides must be an integer of at least 1; got strides=1.5"),
        ({"width": 40}, "width must be divisible by the 32 groups of GroupNorm; got width=40"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ResNetStage(**{**ARGUMENTS, **changes})
