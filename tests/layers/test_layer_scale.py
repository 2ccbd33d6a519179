"""LayerScale: one learned factor per channel."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers import LayerScale


def test_each_channel_has_its_factor(randomise):
    layer, x = LayerScale(), np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    layer.build(x.shape)
    gamma = randomise(layer)["gamma"]
    assert gamma.shape == (5,)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), x * gamma, atol=1e-6)


@pytest.mark.parametrize(("kwargs", "value"), [({}, 1e-4), ({"init": 0.5}, 0.5), ({"init": 1}, 1.0)])
def test_factors_start_at_init(kwargs, value, initial):
    layer = LayerScale(**kwargs)
    layer.build((None, 3, 5))
    np.testing.assert_array_equal(initial(layer)["gamma"], np.full(5, value, "float32"))


@for_each("init", [0, -0.1, float("nan"), float("inf"), "1e-4", True, None])
def test_init_that_is_no_positive_number_is_refused(init):
    with pytest.raises(ValueError, match=f"init must be a finite number above 0; got init={init!r}"):
        LayerScale(init)
