"""MixUp and CutMix: labels keep their mass, pixels are what the labels say, shares follow the Beta distribution."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from augmented import each
from slow_rows import slow_after

from keras_vit.data.augment import parse_mix
from keras_vit.data.augment.mixing import draw_box, draw_share

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0, 255, (6, 24, 32, 3)).astype(np.float32)
LABELS = np.eye(6, dtype=np.float32)


def mixed(texts, number, rows=slice(None)):
    partners = [np.roll(values, 1, axis=0)[rows] for values in (IMAGES, LABELS)]
    seed = tf.constant((5, number), tf.int64)
    return [values.numpy() for values in parse_mix(texts)(IMAGES[rows], LABELS[rows], *partners, seed)]


@pytest.mark.parametrize("texts", [("mixup(0.8)",), ("cutmix(1.0)",), ("mixup(0.2)", "cutmix(0.5)")])
def test_labels_keep_their_mass(texts):
    for number in range(20):
        images, labels = mixed(texts, number)
        assert images.dtype == labels.dtype == np.float32 and images.shape == IMAGES.shape
        np.testing.assert_allclose(labels.sum(1), 1.0, atol=1e-6)
        kept = labels.diagonal()
        assert np.ptp(kept) == 0  # one share for the batch
        np.testing.assert_allclose(labels, kept[0] * LABELS + (1 - kept[0]) * np.roll(LABELS, 1, 0), atol=1e-6)


def test_mixup_pixels_are_what_the_labels_say():
    for number in range(20):
        images, labels = mixed(("mixup(0.8)",), number)
        share = labels[0, 0]
        assert share >= 0.5
        expected = share * IMAGES + (np.float32(1) - share) * np.roll(IMAGES, 1, axis=0)
        np.testing.assert_array_equal(images, expected)


def test_cutmix_pixels_are_what_the_labels_say():
    areas = []
    for number in range(40):
        images, labels = mixed(("cutmix(1.0)",), number)
        is_own, is_partner = images == IMAGES, images == np.roll(IMAGES, 1, axis=0)
        np.testing.assert_array_equal(is_own, ~is_partner)
        taken = is_partner[0, :, :, 0]
        np.testing.assert_array_equal(is_partner, np.broadcast_to(taken[None, :, :, None], is_partner.shape))
        np.testing.assert_array_equal(taken, np.outer(taken.any(1), taken.any(0)))  # one rectangle
        assert labels[0, 0] == np.float32(1 - taken.mean())
        areas.append(taken.mean())
    assert min(areas) < 0.1 and max(areas) > 0.5


@pytest.mark.parametrize("alpha", slow_after(1, [0.2, 0.8, 1.0]))
def test_shares_follow_the_beta_distribution(alpha):
    shares = each(lambda number: draw_share(alpha, tf.stack([number, number])), 4000)
    beta = scipy.stats.beta(alpha, alpha)
    assert scipy.stats.kstest(shares, beta.cdf).pvalue > 1e-3
    np.testing.assert_allclose(shares.mean(), 0.5, atol=4 * beta.std() / np.sqrt(4000))
    quantiles = (0.1, 0.25, 0.75, 0.9)
    np.testing.assert_allclose(beta.cdf(np.quantile(shares, quantiles)), quantiles, atol=0.03)


def test_cutmix_box_has_the_drawn_area_and_its_centre_anywhere():
    sides, places = [], []
    for number in range(300):
        rows, columns = (flags.numpy() for flags in draw_box((200, 100), 1.0, tf.constant((2, number))))
        if rows[[0, -1]].any() or columns[[0, -1]].any() or not rows.any() or not columns.any():
            continue  # cut by the border
        assert abs(rows.sum() / 200 - columns.sum() / 100) <= 0.02
        sides.append((rows.sum() / 200) ** 2)
        places.append((rows.argmax() + rows.sum() / 2) / 200)
    assert len(sides) > 40 and max(places) > 0.8 and min(places) < 0.2 and max(sides) > 0.4


def test_rows_may_be_mixed_apart():
    for number in range(10):
        for texts in (("mixup(0.8)", "cutmix(1.0)"), ("cutmix(1.0)",)):
            whole = mixed(texts, number)
            parts = [mixed(texts, number, rows) for rows in (slice(0, 3), slice(3, 6))]
            for values, *halves in zip(whole, *parts, strict=True):
                np.testing.assert_array_equal(values, np.concatenate(halves))


def test_both_are_drawn_alike():
    kinds = []
    for number in range(60):
        images, _ = mixed(("mixup(0.8)", "cutmix(1.0)"), number)
        own, partner = images == IMAGES, images == np.roll(IMAGES, 1, axis=0)
        kinds.append((own | partner).all())
    assert 15 < sum(kinds) < 45


def test_the_seed_determines_the_batch_whatever_the_thread():
    mix = parse_mix(("mixup(0.8)", "cutmix(1.0)"))

    def batches(parallel):
        partners = np.roll(IMAGES, 1, axis=0), np.roll(LABELS, 1, axis=0)
        return each(lambda number: mix(IMAGES, LABELS, *partners, tf.stack([number, number])), 24, parallel)

    for first, second in zip(batches(1), batches(8), strict=True):
        np.testing.assert_array_equal(first, second)
