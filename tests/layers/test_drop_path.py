"""DropPath: whole samples are dropped, what is kept is scaled."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers import DropPath


def test_whole_samples_are_dropped_and_the_rest_is_scaled():
    x = np.random.default_rng(1).uniform(1, 2, size=(4000, 2, 3)).astype("float32")
    factors = _call(DropPath(0.4), x) / x
    per_sample = factors[:, 0, 0]
    np.testing.assert_allclose(factors, np.broadcast_to(per_sample[:, None, None], factors.shape), atol=1e-6)
    kept = per_sample > 0.5
    np.testing.assert_allclose(per_sample[kept], 1 / 0.6, rtol=1e-6)
    assert not per_sample[~kept].any()
    assert kept.mean() == pytest.approx(0.6, abs=0.03)  # four deviations


def test_expectation_is_the_input():
    assert _call(DropPath(0.25), np.ones((8000, 1, 1), "float32")).mean() == pytest.approx(1.0, abs=0.03)


def test_inference_and_rate_zero_change_nothing():
    x = np.random.default_rng(1).normal(size=(50, 2, 3)).astype("float32")
    np.testing.assert_array_equal(_call(DropPath(0.9), x, training=False), x)
    np.testing.assert_array_equal(_call(DropPath(0.0), x), x)


def test_seed_makes_the_drops_reproducible():
    x = np.ones((64, 1, 1), "float32")
    first, second, other = (_call(DropPath(0.5, seed=seed), x) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_calls_differ():
    layer, x = DropPath(0.5), np.ones((64, 1, 1), "float32")
    assert (_call(layer, x) != _call(layer, x)).any()


def test_config_holds_only_constructor_arguments():
    assert "noise_shape" not in DropPath(0.5, seed=3).get_config()


@for_each("rate", [1.0, -0.1, 1.5, "0.1", True, None])
def test_wrong_rate_is_refused(rate):
    with pytest.raises(ValueError, match=rf"rate must be a number in \[0, 1\); got rate={rate!r}"):
        DropPath(rate)


def _call(layer, x, training=True):
    return keras.ops.convert_to_numpy(layer(x, training=training))
