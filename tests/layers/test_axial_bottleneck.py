"""AxialBottleneck and AxialStage: the order of the unit's steps, its shortcuts and strides."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers.axial_resnet import AxialBottleneck, AxialStage

EPSILON = 1e-3


@pytest.mark.parametrize(
    ("channels", "strides"), [(16, 1), (6, 1), (16, 2), (6, 2)], ids=["same", "wider", "strided", "both"]
)
def test_values(channels, strides, randomise):
    unit = AxialBottleneck(8, strides, 2, EPSILON)
    maps = _maps((5, 4, channels))
    unit.build(maps.shape)
    weights = _randomise(unit, randomise)
    x = maps.astype("float64")
    branch = _relu(_norm(x @ weights["down/kernel"], weights, "down_norm"))
    # The attention itself is tested in test_axial_attention.py.
    branch = _call(unit.width_attention, _call(unit.height_attention, branch.astype("float32")))
    branch = _norm(_relu(_pool(branch, strides)) @ weights["up/kernel"], weights, "up_norm")
    has_projection = strides != 1 or channels != 16
    assert ("shortcut/kernel" in weights) is has_projection
    if has_projection:
        x = _norm(x[:, ::strides, ::strides] @ weights["shortcut/kernel"][0, 0], weights, "shortcut_norm")
    np.testing.assert_allclose(_call(unit, maps), _relu(branch + x), atol=5e-5)


def _pool(maps, strides):
    """Means of squares of cells, of those that there are at the ends."""
    rows, columns = (range(0, side, strides) for side in maps.shape[1:3])
    means = [[maps[:, r : r + strides, c : c + strides].mean(axis=(1, 2)) for c in columns] for r in rows]
    return np.array(means).transpose(2, 0, 1, 3)


def _norm(x, weights, name):
    gamma, beta, mean, variance = (
        weights[f"{name}/{kind}"] for kind in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    return (x - mean) / np.sqrt(variance + EPSILON) * gamma + beta


def _relu(x):
    return np.maximum(x, 0.0)


def test_both_axes_are_attended_in_every_unit(randomise):
    unit, maps = AxialBottleneck(8, 1, 2), _maps((3, 5, 16))
    unit.build(maps.shape)
    _randomise(unit, randomise)
    assert (unit.height_attention.axis, unit.width_attention.axis) == ("height", "width")
    assert unit.height_attention.relative_positions.shape[0] == 2 * 3 - 1
    assert unit.width_attention.relative_positions.shape[0] == 2 * 5 - 1
    changed = maps.copy()
    changed[0, 1, 2] += 1.0
    differs = np.any(_call(unit, maps) != _call(unit, changed), axis=-1)
    assert differs[0].all() and not differs[1].any()


def test_a_new_unit_is_its_shortcut():
    maps = _maps((3, 5, 16))
    np.testing.assert_array_equal(_call(AxialBottleneck(8, 1, 2), maps), _relu(maps))


@pytest.mark.slow
def test_gradients_reach_every_weight_that_mathematics_lets_them(randomise):
    unit, maps = AxialBottleneck(8, 2, 2), _maps((4, 4, 6))
    target = np.random.default_rng(2).normal(size=(2, 2, 2, 16))
    model = keras.Sequential([keras.Input((4, 4, 6)), unit])
    _randomise(unit, randomise)
    model.compile(keras.optimizers.SGD(1.0), "mse")
    before = {weight.path: _numpy(weight).copy() for weight in unit.trainable_weights}
    model.fit(maps, target, verbose=0)
    # A shift of all logits of a head moves no softmax, and a shift of a map no norm of its projection.
    still = ("product_norm/beta", "query_position_norm/beta", "key_position_norm/beta")
    still += ("height_attention/value_norm/beta", "height_attention/value_position_norm/beta")
    for weight in unit.trainable_weights:
        if not weight.path.endswith(still):
            assert np.abs(_numpy(weight) - before[weight.path]).max() > 1e-6, weight.path


def test_stage_is_its_units_and_only_the_first_is_strided(randomise):
    stage, maps = AxialStage(3, 8, 2, 2, EPSILON, name="stage_2"), _maps((5, 4, 6))
    stage.build(maps.shape)
    _randomise(stage, randomise)
    assert [unit.name for unit in stage.units] == ["unit_01", "unit_02", "unit_03"]
    assert [unit.strides for unit in stage.units] == [2, 1, 1]
    assert {unit.epsilon for unit in stage.units} == {EPSILON} and {unit.num_heads for unit in stage.units} == {2}
    lengths = [unit.height_attention.relative_positions.shape[0] for unit in stage.units]
    assert lengths == [2 * 5 - 1, 2 * 3 - 1, 2 * 3 - 1]
    expected = maps
    for unit in stage.units:
        expected = _call(unit, expected)
    assert expected.shape == (2, 3, 2, 16)
    np.testing.assert_allclose(_call(stage, maps), expected, atol=1e-5)
    assert stage.weights[0].path == "stage_2/unit_01/down/kernel"


def test_training_flag_reaches_every_norm(randomise):
    stage, maps = AxialStage(2, 8, 2, 2), _maps((4, 4, 6))
    stage.build(maps.shape)
    before = {weight.path: _numpy(weight).copy() for weight in stage.non_trainable_weights}
    stage(maps, training=False)
    assert all(np.array_equal(_numpy(w), before[w.path]) for w in stage.non_trainable_weights)
    stage(maps, training=True)
    moved = [w.path for w in stage.non_trainable_weights if np.any(_numpy(w) != before[w.path])]
    # The logit norms of a map whose side is 2 see more than one value, so every statistic moves.
    assert sorted(moved) == sorted(before)


@for_each(
    ("kwargs", "message"),
    [
        ({"width": 0}, "width must be an integer of at least 1; got width=0"),
        ({"strides": 3}, "strides must be one of 1, 2; got strides=3"),
        ({"num_heads": 3}, "width must be divisible by twice num_heads; got width=8, num_heads=3"),
        ({"num_heads": 8}, "width must be divisible by twice num_heads; got width=8, num_heads=8"),
        ({"epsilon": -1}, "epsilon must be a finite number above 0; got epsilon=-1"),
    ],
)
@for_each("make", [AxialBottleneck, lambda **kwargs: AxialStage(2, **kwargs)])
def test_wrong_arguments_are_refused(make, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**{"width": 8, "num_heads": 2, **kwargs})


def test_a_stage_without_units_is_refused():
    with pytest.raises(ValueError, match="num_units must be an integer of at least 1; got num_units=0"):
        AxialStage(0, 8)


def _randomise(layer, randomise):
    """Random weights, with variances above 0; by path."""
    randomise(layer)
    for weight in layer.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(np.abs(_numpy(weight)) + 0.2)
    prefix = f"{layer.name}/"
    return {w.path.split(prefix, 1)[1]: _numpy(w).astype("float64") for w in layer.weights}


def _maps(shape):
    return np.random.default_rng(1).normal(size=(2, *shape)).astype("float32")


def _call(layer, maps):
    return _numpy(layer(maps))


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
