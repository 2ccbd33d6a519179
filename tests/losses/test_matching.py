"""The assignment of queries to objects against SciPy's."""

import numpy as np
from faults import for_each
from scipy.optimize import linear_sum_assignment

from keras_vit.losses.matching import assign

RNG = np.random.default_rng(0)


def expected(costs, exists):
    queries = np.full(exists.shape, -1)
    for image, which in enumerate(map(np.flatnonzero, exists)):
        objects, found = linear_sum_assignment(costs[image, which])
        queries[image, which[objects]] = found
    return queries


@for_each("batch, objects, queries", [(3, 5, 8), (4, 7, 7), (4, 9, 5), (2, 20, 40), (1, 1, 1)])
def test_equals_scipy(batch, objects, queries):
    costs, exists = RNG.normal(size=(batch, objects, queries)), RNG.random((batch, objects)) < 0.7
    exists[0] = True
    np.testing.assert_array_equal(assign(costs, exists), expected(costs, exists))


def test_ties_have_the_least_sum():
    costs = RNG.integers(0, 3, (5, 6, 6)).astype("float32")
    found, best = np.asarray(assign(costs, np.ones((5, 6), bool))), expected(costs, np.ones((5, 6), bool))
    for image in range(5):
        assert len({*found[image]}) == 6
        assert costs[image][np.arange(6), found[image]].sum() == costs[image][np.arange(6), best[image]].sum()


def test_no_object_and_values_that_are_not_finite():
    costs = np.array([[[np.nan, 2.0, np.inf], [1.0, 3.0, -np.inf]]])
    np.testing.assert_array_equal(assign(costs, [[True, True]]), [[1, 2]])
    np.testing.assert_array_equal(assign(costs, [[False, False]]), [[-1, -1]])
    np.testing.assert_array_equal(assign(costs, [[False, True]]), [[-1, 2]])
