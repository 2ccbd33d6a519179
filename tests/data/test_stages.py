"""What runs on images and what runs on batches, and that the rows of a batch may be done apart."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import Preprocessing
from keras_vit.data.augment import Operation, parse_mix
from keras_vit.data.stages import convert, training_stages

LEVELS = Preprocessing(size=4, mean=(0.0,), std=(1 / 255,))
IMAGES = np.random.default_rng(0).uniform(0, 255, (6, 4, 4, 1)).astype(np.float32)
LABELS = tf.range(6)
ROWS = tf.range(6, dtype=tf.int64)

BRIGHTER = Operation("brighter", "image", lambda image, seed: image + tf.random.stateless_uniform((), seed))
NEGATIVE = Operation("negative", "batch", lambda images, seed: 255.0 - images)
CORNER = Operation(
    "corner", "crop", lambda image, size, channels, seed: tf.cast(image, tf.float32)[: size[0], : size[1]]
)


def stages(*operations, mix=(), has_partner=False):
    options = {"seed": 1, "dtype": "float32", "classes": 6, "has_partner": has_partner}
    return training_stages(LEVELS, list(operations), parse_mix(mix), **options)


def test_an_image_is_cropped_or_resized_then_augmented():
    wide = np.repeat(np.repeat(IMAGES[0], 2, axis=0), 2, axis=1)
    number = tf.constant(3, tf.int64)
    np.testing.assert_allclose(stages()[0](number, wide), IMAGES[0], atol=1e-3)
    np.testing.assert_allclose(stages(CORNER)[0](number, wide), wide[:4, :4], atol=1e-3)
    added = stages(CORNER, BRIGHTER)[0](number, wide) - wide[:4, :4]
    assert np.ptp(added) < 1e-3 and 0 < np.mean(added) < 1
    other = stages(CORNER, BRIGHTER)[0](number + 1, wide) - wide[:4, :4]
    assert abs(np.mean(other) - np.mean(added)) > 1e-3


def test_what_follows_a_batch_operation_waits_for_it():
    prepare, finish = stages(NEGATIVE, BRIGHTER)
    number = tf.constant(2, tf.int64)
    np.testing.assert_allclose(prepare(number, IMAGES[0]), IMAGES[0], atol=1e-4)
    images, labels = finish(number, ROWS, IMAGES, LABELS)
    added = images - (255.0 - IMAGES)
    assert np.ptp(added, axis=(1, 2)).max() < 1e-3
    assert len(np.unique(np.round(np.mean(added, axis=(1, 2)), 4))) == 6  # each row has a draw of its own
    np.testing.assert_array_equal(labels, LABELS)
    again, _ = finish(number, ROWS[2:4], IMAGES[2:4], LABELS[2:4])
    np.testing.assert_array_equal(again, images[2:4])


@pytest.mark.parametrize("operations", [(), (NEGATIVE, BRIGHTER)], ids=["plain", "late"])
def test_partners_come_from_the_row_before(operations):
    number, mix = tf.constant(5, tf.int64), ("mixup(1.0)", "cutmix(1.0)")
    images, labels = stages(*operations, mix=mix)[1](number, ROWS, IMAGES, LABELS)
    for first, end in ((0, 3), (3, 6)):
        taken = tf.math.floormod(tf.range(first - 1, end, dtype=tf.int64), 6)
        finish = stages(*operations, mix=mix, has_partner=True)[1]
        part = finish(number, taken, tf.gather(IMAGES, taken), tf.gather(LABELS, taken))
        np.testing.assert_array_equal(part[0], images[first:end])
        np.testing.assert_array_equal(part[1], labels[first:end])


def test_uint8_rounds_to_even_and_clips():
    levels = convert(LEVELS, "uint8", tf.constant([-3.0, 0.5, 1.5, 254.7, 300.0]))
    assert levels.dtype == tf.uint8 and levels.numpy().tolist() == [0, 0, 2, 255, 255]
