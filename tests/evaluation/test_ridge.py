"""The draw of images; the ridge regression against scikit-learn's and its normal equations, and its folded form.

The official code's numbers are the cases fewshot_primal and fewshot_dual of test_golden.py.
"""

import numpy as np
import pytest
from faults import for_each

from keras_vit.evaluation import fit_ridge
from keras_vit.evaluation.linear_probe import draw_shots

CLASSES = 4
DRAWN_FROM = np.random.default_rng(0).integers(0, 3, 90)
CLASS_NAMES = ("ant", "bee", "cat")


def drawn(images, dim, scale=1.0):
    rng = np.random.default_rng(images)
    labels = np.arange(images) % CLASSES
    centres = rng.normal(size=(CLASSES, dim))
    return scale * (centres[labels] + rng.normal(size=(images, dim))) + 3.0, labels


def design(features):
    """The standardised features and the constant."""
    x = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-5)
    return np.concatenate([x, np.full((len(x), 1), 100.0)], axis=1)


@pytest.mark.parametrize(("images", "dim"), [(60, 12), (13, 12), (12, 12), (8, 30)])
@pytest.mark.parametrize("l2", [1024.0, 0.5])
def test_weights_are_those_of_scikit_learn(images, dim, l2):
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = drawn(images, dim)
    other = linear_model.Ridge(alpha=l2, fit_intercept=False, solver="svd")
    other.fit(design(features), 2.0 * np.eye(CLASSES)[labels] - 1.0)
    np.testing.assert_allclose(fit_ridge(features, labels, CLASSES, l2).weights, other.coef_.T, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize(("images", "dim"), [(40, 10), (10, 40)])
def test_normal_equations_hold(images, dim):
    features, labels = drawn(images, dim)
    x, y = design(features), np.where(np.eye(CLASSES)[labels] > 0, 1.0, -1.0)
    weights = fit_ridge(features, labels, CLASSES).weights
    np.testing.assert_allclose(x.T @ (x @ weights - y) + 1024.0 * weights, 0.0, atol=1e-7)


@pytest.mark.parametrize("images", [60, 8])
def test_folded_weights_give_the_same_scores(images):
    features, labels = drawn(images, 20)
    ridge = fit_ridge(features, labels, CLASSES)
    others, _ = drawn(50, 20)
    kernel, bias = ridge.folded()
    np.testing.assert_allclose(others @ kernel + bias, ridge.scores(others), atol=1e-11)
    np.testing.assert_array_equal(ridge.predict(others), (others @ kernel + bias).argmax(axis=1))


def test_the_scale_of_the_features_does_not_matter():
    small, labels = drawn(40, 10)
    large, _ = drawn(40, 10, scale=1000.0)
    scores = [fit_ridge(features, labels, CLASSES).scores(features) for features in (small, large)]
    np.testing.assert_allclose(*scores, atol=1e-4)


def test_constant_and_equal_features_are_no_trouble():
    features, labels = drawn(30, 6)
    features = np.concatenate([features, features[:, :3], np.zeros((30, 2))], axis=1).astype(np.float32)
    scores = fit_ridge(features, labels, CLASSES, l2=1e-9).scores(features)
    assert np.isfinite(scores).all() and (scores.argmax(axis=1) == labels).mean() > 0.8


@for_each(
    ("changes", "message"),
    [
        ({"features": np.zeros((0, 3)), "labels": np.zeros(0, int)}, r"not empty; got shape \(0, 3\)"),
        ({"features": np.zeros(2)}, r"\(images, dim\), not empty; got shape \(2,\)"),
        ({"features": np.full((2, 3), np.nan)}, "features must be a finite array"),
        ({"labels": [0.0, 1.0]}, r"integer labels .*; got float64 of shape \(2,\)"),
        ({"labels": [0, 1, 1]}, "labels must be one per image; got 3 for 2 images"),
        ({"labels": [0, 2]}, "labels must be from 0 to 1, as there are 2 classes; they range from 0 to 2"),
        ({"classes": 0}, "classes must be an integer of at least 1; got classes=0"),
        ({"l2": 0.0}, "l2 must be a finite number above 0; got l2=0.0"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        fit_ridge(**{"features": np.zeros((2, 3)), "labels": [0, 1], "classes": 2, **changes})


def test_every_row_holds_distinct_images_of_its_class():
    drawn = draw_shots(DRAWN_FROM, CLASS_NAMES, 10, seed=0)
    assert drawn.shape == (3, 10) and len(np.unique(drawn)) == 30
    np.testing.assert_array_equal(DRAWN_FROM[drawn], np.arange(3)[:, None].repeat(10, axis=1))


def test_more_shots_contain_fewer():
    np.testing.assert_array_equal(
        draw_shots(DRAWN_FROM, CLASS_NAMES, 10, 1)[:, :4], draw_shots(DRAWN_FROM, CLASS_NAMES, 4, 1)
    )


def test_a_seed_is_a_draw():
    first, again, other = (draw_shots(DRAWN_FROM, CLASS_NAMES, 5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_draw_is_that_of_big_vision():
    rng = np.random.default_rng(2)
    expected = [rng.permutation(np.where(DRAWN_FROM == number)[0])[:5] for number in range(3)]
    np.testing.assert_array_equal(draw_shots(DRAWN_FROM, CLASS_NAMES, 5, 2), expected)


def test_a_class_with_too_few_images_is_named():
    labels = np.array([0] * 9 + [1] * 3 + [2] * 2)
    with pytest.raises(ValueError, match="got shots=3, and train has 2 of class 'cat'; 1 of 3"):
        draw_shots(labels, CLASS_NAMES, 3, 0)
    with pytest.raises(ValueError, match="got shots=5, and train has 3 of class 'bee'; 2 of 3 classes have too few$"):
        draw_shots(labels, CLASS_NAMES, 5, 0)
