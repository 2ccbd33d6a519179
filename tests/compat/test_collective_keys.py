"""Several strategies in one process: their exchanges have numbers of their own."""

from keras_vit.compat.tensorflow_fit import mirrored_strategy


def _first_group(strategy):
    return strategy.extended._collective_keys._group_key


def test_every_strategy_has_numbers_of_its_own():
    first, second = (_first_group(mirrored_strategy(["CPU:0"])) for _ in range(2))
    assert abs(second - first) >= 1000


def test_tensorflow_still_starts_every_strategy_at_the_same_number():
    """The fault that this file is for; when this fails, delete it."""
    import tensorflow as tf

    first, second = (_first_group(tf.distribute.MirroredStrategy(["CPU:0"])) for _ in range(2))
    assert first == second
