"""PatchPlaces and RepeatedPrefix: the places of patches, and the image of every token of a sequence."""

import keras
import numpy as np

from keras_vit.layers.patches import PADDING, PatchPlaces, RepeatedPrefix

COORDINATES = np.array([[(0, 0, 1, 2, 0), (0, 1, 1, 2, 0), (0, 0, 1, 1, 1), PADDING]], "int32")


def test_each_image_has_its_own_prefix():
    places, images = PatchPlaces(images_per_sequence=3, num_prefix_tokens=2)(COORDINATES)
    np.testing.assert_array_equal(places, COORDINATES[..., :4])
    np.testing.assert_array_equal(images, [[0, 0, 1, 1, 2, 2, 0, 0, 1, -1]])
    tokens = np.arange(6, dtype="float32").reshape(1, 6, 1)  # two class tokens and registers, four patches
    repeated = RepeatedPrefix(images_per_sequence=3, num_prefix_tokens=2)
    np.testing.assert_array_equal(repeated(tokens)[0, :, 0], [0, 1, 0, 1, 0, 1, 2, 3, 4, 5])
    assert repeated.compute_output_shape((None, 6, 1)) == (None, 10, 1)


def test_a_replica_without_rows_gets_a_grid_of_one_patch():
    """It gets zeros instead of a part of the last batch, which must neither fail nor divide by zero."""
    places, images = PatchPlaces()(np.zeros((1, 2, 5), "int32"))
    np.testing.assert_array_equal(places, [[(0, 0, 1, 1)] * 2])
    np.testing.assert_array_equal(images, [[0, 0]])


def test_a_symbolic_call_has_the_shapes_of_a_call():
    places, images = PatchPlaces(2, 3)(keras.KerasTensor((None, 7, 5), "int32"))
    assert (places.shape, images.shape) == ((None, 7, 4), (None, 13))
    assert PatchPlaces.from_config(PatchPlaces(2, 3).get_config()).num_prefix_tokens == 3
