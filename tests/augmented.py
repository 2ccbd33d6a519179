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
    numbers = tf.data.Dataset.range(count)
    results = numbers.map(lambda n: operation(tf.constant(image), tf.stack([n, n])), parallel)
    return np.stack(list(results.as_numpy_iterator()))


def check_determinism(text):
    """The seed determines the picture, whatever the thread."""
    first = draw(text, 32, parallel=1)
    np.testing.assert_array_equal(first, draw(text, 32, parallel=8))
    assert len(np.unique(first.reshape(32, -1), axis=0)) > 1
