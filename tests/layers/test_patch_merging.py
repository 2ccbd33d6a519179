"""PatchMerging: 2 x 2 tokens joined one by one in NumPy."""

import keras
import numpy as np
import pytest

from keras_vit.layers.swin_block import PatchMerging


@pytest.mark.parametrize("size", [(4, 6), (3, 4), (4, 5), (3, 5), (1, 1)])
def test_values(size, reference, randomise):
    layer = PatchMerging(epsilon=1e-2)
    maps = np.random.default_rng(1).normal(size=(2, *size, 3)).astype("float32")
    layer.build(maps.shape)
    weights = randomise(layer)
    assert {path: value.shape for path, value in weights.items()} == {
        "norm/gamma": (12,),
        "norm/beta": (12,),
        "reduction/kernel": (12, 6),
    }
    merged = keras.ops.convert_to_numpy(layer(maps))
    rows, columns = (size[0] + 1) // 2, (size[1] + 1) // 2
    assert merged.shape == (2, rows, columns, 6)

    def token(sample, row, column):
        inside = row < size[0] and column < size[1]
        return maps[sample, row, column].astype("float64") if inside else np.zeros(3)

    for sample, row, column in np.ndindex(2, rows, columns):
        corners = [(0, 0), (1, 0), (0, 1), (1, 1)]  # (row, column), the order of the authors' code
        joined = np.concatenate([token(sample, 2 * row + dy, 2 * column + dx) for dy, dx in corners])
        normed = reference.layer_norm(joined, weights["norm/gamma"], weights["norm/beta"], 1e-2)
        expected = normed @ weights["reduction/kernel"]
        np.testing.assert_allclose(merged[sample, row, column], expected, atol=1e-5)


def test_kernel_starts_as_a_cut_normal_of_0_02(initial):
    layer = PatchMerging()
    layer.build((None, 2, 2, 64))
    kernel = initial(layer)["reduction/kernel"]
    assert np.abs(kernel).max() <= 0.04
    assert kernel.std() == pytest.approx(0.88 * 0.02, rel=0.03)


def test_maps_of_unknown_size_are_refused():
    with pytest.raises(ValueError, match=r"known size; got \(None, None, 4, 3\)"):
        PatchMerging().build((None, None, 4, 3))
    with pytest.raises(ValueError, match=r"maps of shape .*; got \(None, 16, 3\)"):
        PatchMerging().build((None, 16, 3))


def test_wrong_epsilon_is_refused():
    with pytest.raises(ValueError, match="epsilon must be a finite number above 0; got epsilon=0"):
        PatchMerging(epsilon=0)
