"""Random erasing: how often, where, how large and with what."""

import numpy as np
import scipy.stats
import tensorflow as tf
from augmented import IMAGE, check_determinism, draw, each

from keras_vit.data.augment.geometry import draw_box


def test_the_seed_determines_the_image():
    check_determinism("random_erasing(0.5)")


def test_random_erasing_fills_one_rectangle_with_noise():
    results = draw("random_erasing(0.4)", 400)
    erased = [result for result in results if not np.array_equal(result, IMAGE)]
    assert 120 < len(erased) < 200  # 400 draws at 0.4: four standard deviations
    noise = []
    for result in erased:
        changed = (result != IMAGE).any(-1)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert changed[box].all() and changed.sum() == changed[box].size
        noise.append(result[box].reshape(-1, 3))
    noise = np.concatenate(noise)
    assert noise.min() == 0 and noise.max() == 255
    normal = scipy.stats.norm((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    for quantile in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(noise, quantile, axis=0), normal.ppf(quantile), atol=1.5)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.02  # drawn for each channel


def test_boxes_of_random_erasing():
    image = tf.zeros((100, 120, 3))

    def boxes(areas, aspects, count):
        return each(lambda number: draw_box(image, areas, aspects, tf.stack([number, number])), count)

    top, left, rows, columns = boxes((0.02, 1 / 3), (0.3, 1 / 0.3), 2000)
    area = rows * columns / 12000
    assert area.min() > 0.018 and area.max() < 0.35
    assert scipy.stats.kstest(area[area < 0.2], scipy.stats.uniform(0.02, 0.18).cdf).statistic < 0.05
    aspect = np.log(rows / columns)[area < 0.1]  # all of these fit
    reach = np.log(1 / 0.3)
    assert scipy.stats.kstest(aspect, scipy.stats.uniform(-reach, 2 * reach).cdf).statistic < 0.06
    assert (top + rows <= 100).all() and (left + columns <= 120).all()
    assert top.min() == left.min() == 0
    assert np.max(boxes((1.0, 1.0), (1.0, 1.0), 5)[2:]) == 0  # none fits


def test_random_erasing_of_grey_images():
    results = draw("random_erasing(1.0)", 20, IMAGE[..., :1])
    assert results.shape == (20, 64, 80, 1)
    assert all((result != IMAGE[..., :1]).any() for result in results)
