"""Different random numbers on each replica of tf.distribute.

Keras's seed generators have the same state on every replica, so Dropout draws the same mask everywhere. Delete this
file when tests/compat/test_replica_seeds.py finds that the masks of stock Keras differ.
"""

import types

import keras


def separate_replica_seeds(model):
    """Make every seed generator inside `model` add the replica's number to its seeds.

    With one replica the seeds do not change. The saved states of the generators stay equal on all replicas, so a run
    depends on its seeds and the number of replicas.

    Args:
        model: a Keras model; only the layers that it has now are changed.
    """
    for layer in model._flatten_layers(include_self=True, recursive=True):
        for generator in layer._seed_generators:
            vars(generator)["next"] = types.MethodType(_next, generator)


def _next(self, ordered=True):
    import tensorflow as tf

    seed = keras.random.SeedGenerator.next(self, ordered)
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(context.replica_id_in_sync_group, seed.dtype))
