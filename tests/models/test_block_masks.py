"""Block masks: their limits; the golden case dinov2_masks has the masks of the original with its draws."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.models.block_masks import block_masks, masked_places, most_masked_patches, requested_patches

GRID, PATCHES = (7, 6), 42


def numpy(value):
    return ops.convert_to_numpy(value)


def draws(*shape, seed=0):
    return ops.convert_to_tensor(np.random.default_rng(seed).random(shape, "float32"))


def test_requests_are_stratified_over_the_masked_crops():
    found = [numpy(requested_patches(draws(2, 21, seed=n), PATCHES, (0.2, 0.6), 0.4)) for n in range(20)]
    edges = np.linspace(0.2, 0.6, 9)
    for one in found:
        requests = np.sort(one)
        assert not requests[:13].any()  # int(0.4 * 21) crops are masked
        for request, low, high in zip(requests[13:], edges, edges[1:], strict=False):
            assert int(PATCHES * low) <= request <= PATCHES * high
        assert one.sum() <= most_masked_patches(21, PATCHES, (0.2, 0.6), 0.4)
    assert len({tuple(one > 0) for one in found}) == 20  # in random order
    assert not numpy(requested_patches(draws(2, 1), PATCHES)).any()  # int(0.5 * 1) crops
    assert most_masked_patches(1, PATCHES) == 0


def test_masks_are_blocks_of_at_most_the_requested_patches():
    requests = ops.convert_to_tensor(np.tile([0, 3, 8, 21], 50).astype("int32"))
    found = numpy(block_masks(draws(64, 4, 200), requests, GRID))
    counts = found.sum((1, 2)).reshape(50, 4)
    assert found.dtype == bool and (counts <= [0, 3, 8, 21]).all()
    assert (counts.mean(0)[2:] > [7.5, 20.5]).all()
    neighbours = (found[:, 1:] & found[:, :-1]).sum((1, 2)) + (found[:, :, 1:] & found[:, :, :-1]).sum((1, 2))
    assert neighbours.reshape(50, 4)[:, 3].mean() > 24  # single patches, 21 of 42 at random, would have 17
    again = numpy(block_masks(draws(64, 4, 200), requests, GRID))
    np.testing.assert_array_equal(found, again)


def test_tries_end_the_masks():
    requests = ops.convert_to_tensor(np.full(30, 21, "int32"))
    counts = [numpy(block_masks(draws(64, 4, 30)[:tries], requests, GRID)).sum() for tries in (1, 4, 64)]
    assert 0 < counts[0] < counts[1] < counts[2]
    small = numpy(block_masks(draws(64, 4, 30), requests, GRID, minimum=1, maximum=1))  # aspect ratios round to 1 x 1
    assert small.any() and (small.sum((1, 2)) <= 21).all()


def test_places_of_masked_patches():
    masks = np.zeros((3, 2, 2), bool)
    masks[0, 1, 0] = masks[2, 0, 1] = masks[2, 1, 1] = True
    places, weights = map(numpy, masked_places(ops.convert_to_tensor(masks), 5))
    assert places[:3].tolist() == [2, 9, 11] and weights.tolist() == [1, 0.5, 0.5, 0, 0]


@pytest.mark.parametrize("jit", [False, True])
def test_in_compiled_functions(jit):
    def run(two, four):
        requests = requested_patches(two, PATCHES)
        masks = block_masks(four, requests, GRID)
        return requests, masks, masked_places(masks, most_masked_patches(8, PATCHES))[1]

    given = draws(2, 8), draws(64, 4, 8)
    expected = run(*given)
    if keras.backend.backend() == "jax":
        import jax

        found = jax.jit(run)(*given)
    else:
        import tensorflow as tf

        found = tf.function(run, jit_compile=jit)(*given)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(numpy(one), numpy(other), rtol=1e-6)
