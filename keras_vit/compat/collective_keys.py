"""Several MirroredStrategy objects in one process.

Every strategy of TensorFlow numbers its device groups from 1, so the collective operations of a second strategy are
mistaken for those of the first and fail if their shapes differ. As in TensorFlow's own tests, this file changes the
first number. Delete it when tests/compat/test_collective_keys.py finds that a second strategy has its own numbers.
"""

import itertools

_GROUPS_PER_STRATEGY = 1000
_starts = itertools.count(_GROUPS_PER_STRATEGY, _GROUPS_PER_STRATEGY)


def mirrored_strategy(devices=None):
    """Return a `tf.distribute.MirroredStrategy` over `devices` with its own numbers of collective operations."""
    import tensorflow as tf

    base = tf.distribute.MirroredStrategy._collective_key_base
    tf.distribute.MirroredStrategy._collective_key_base = base + next(_starts)
    try:
        return tf.distribute.MirroredStrategy(devices)
    finally:
        tf.distribute.MirroredStrategy._collective_key_base = base
