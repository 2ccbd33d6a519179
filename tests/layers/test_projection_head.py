"""ProjectionHead against its formula in NumPy; the golden case `dino_loss` compares it with the original program."""

import keras
import numpy as np
import pytest

from keras_vit.layers import ProjectionHead


@pytest.mark.parametrize("num_layers", [1, 3])
def test_formula(num_layers, reference, randomise):
    head = ProjectionHead(7, 6, 5, num_layers, norm_last_layer=False)
    head.build((None, 4))
    weights = randomise(head)
    x = features = np.random.default_rng(1).normal(size=(2, 3, 4))
    for n in range(num_layers):
        x = reference.gelu(x, "erf") if n else x
        x = x @ weights[f"dense_{n}/kernel"] + weights[f"dense_{n}/bias"]
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    expected = x @ (weights["scale"] * weights["kernel"] / np.linalg.norm(weights["kernel"], axis=0))
    np.testing.assert_allclose(head.bottleneck(features.astype("float32")), x, atol=1e-6)
    np.testing.assert_allclose(head(features.astype("float32")), expected, atol=1e-6)


def test_initial_weights_are_those_of_the_authors(initial, check_uniform):
    head = ProjectionHead(100, 120, 110)
    head.build((None, 130))
    weights = initial(head)
    for n in range(3):
        kernel = weights[f"dense_{n}/kernel"]
        assert kernel.std() == pytest.approx(0.02, rel=0.03) and np.abs(kernel).max() > 0.06  # not truncated at 0.04
        assert not weights[f"dense_{n}/bias"].any()
    check_uniform(weights["kernel"], 110**-0.5)
    assert (weights["scale"] == 1).all()


def test_scale_is_trained_only_if_asked_for_and_zeros_stay_finite():
    for flag, count in ((True, 7), (False, 8)):
        head = ProjectionHead(4, 5, 6, norm_last_layer=flag)
        outputs = head(np.zeros((2, 3), "float32"))  # biases are zeros: a bottleneck of zeros
        assert not keras.ops.convert_to_numpy(outputs).any() and len(head.trainable_variables) == count
