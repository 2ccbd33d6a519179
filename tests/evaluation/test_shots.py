"""Which images are drawn: by class, nested, by the seed."""

import numpy as np
import pytest

from keras_vit.evaluation.shots import draw_shots

LABELS = np.random.default_rng(0).integers(0, 3, 90)
NAMES = ("ant", "bee", "cat")


def test_every_row_holds_distinct_images_of_its_class():
    drawn = draw_shots(LABELS, NAMES, 10, seed=0)
    assert drawn.shape == (3, 10) and len(np.unique(drawn)) == 30
    np.testing.assert_array_equal(LABELS[drawn], np.arange(3)[:, None].repeat(10, axis=1))


def test_more_shots_contain_fewer():
    np.testing.assert_array_equal(draw_shots(LABELS, NAMES, 10, 1)[:, :4], draw_shots(LABELS, NAMES, 4, 1))


def test_a_seed_is_a_draw():
    first, again, other = (draw_shots(LABELS, NAMES, 5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_draw_is_that_of_big_vision():
    rng = np.random.default_rng(2)
    expected = [rng.permutation(np.where(LABELS == number)[0])[:5] for number in range(3)]
    np.testing.assert_array_equal(draw_shots(LABELS, NAMES, 5, 2), expected)


def test_a_class_with_too_few_images_is_named():
    labels = np.array([0] * 9 + [1] * 3 + [2] * 2)
    with pytest.raises(ValueError, match="got shots=3, and train has 2 of class 'cat'$"):
        draw_shots(labels, NAMES, 3, 0)
    with pytest.raises(ValueError, match="got shots=5, and train has 3 of class 'bee'; 2 classes have too few$"):
        draw_shots(labels, NAMES, 5, 0)
