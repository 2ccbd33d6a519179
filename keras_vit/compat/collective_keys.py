"""MirroredStrategy, more than one of them in a process.

Every strategy of TensorFlow numbers its groups of devices from 1, so that the exchanges of a second strategy are taken
for those of the first and fail where their shapes differ. TensorFlow's own tests move the first number; so does this.
Delete this file when tests/compat/test_collective_keys.py finds that a second strategy has numbers of its own.
"""

import itertools

_GROUPS_PER_STRATEGY = 1000
_starts = itertools.count(_GROUPS_PER_STRATEGY, _GROUPS_PER_STRATEGY)


def mirrored_strategy(devices=None):
    """Returns a `tf.distribute.MirroredStrategy` over `devices`, whose exchanges are told from those of all others."""
    import tensorflow as tf

    base = tf.distribute.MirroredStrategy._collective_key_base
    tf.distribute.MirroredStrategy._collective_key_base = base + next(_starts)
    try:
        return tf.distribute.MirroredStrategy(devices)
    finally:
        tf.distribute.MirroredStrategy._collective_key_base = base
