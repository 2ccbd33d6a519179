"""Operations run on a photograph, once per seed."""

import numpy as np
import sklearn.datasets
import tensorflow as tf

from keras_vit.data.augment import parse_augment

PHOTO = np.ascontiguousarray(sklearn.datasets.load_sample_image("china.jpg")[150:214, 200:280])  # (64, 80, 3)
IMAGE = PHOTO.astype(np.float32)


def draw(text, count, image=IMAGE, parallel=4):
    """What the operation `text` makes of `image` with seeds (0, 0), (1, 1) and so on."""
    (operation,) = parse_augment((text,))
    return each(lambda number: operation(tf.constant(image), tf.stack([number, number])), count, parallel)


def each(function, count, parallel=4):
    """What `function` makes of the numbers 0, 1 and so on in a data set, stacked."""
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread may sleep on when all is over, see data/pipeline.py
    numbers = tf.data.Dataset.range(count).with_options(options)
    results = numbers.map(tf.autograph.experimental.do_not_convert(function), parallel)
    return tf.nest.map_structure(lambda *values: np.stack(values), *results.as_numpy_iterator())


def check_determinism(text):
    """The seed determines the image, whatever the thread."""
    first = draw(text, 32, parallel=1)
    np.testing.assert_array_equal(first, draw(text, 32, parallel=8))
    assert len(np.unique(first.reshape(32, -1), axis=0)) > 1
