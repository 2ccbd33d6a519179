"""Random numbers that differ from replica to replica of tf.distribute.

Keras keeps one state per seed generator and reads the same one on every replica, so that Dropout draws the same mask
everywhere. Delete this file when tests/compat/test_replica_seeds.py finds that the masks of stock Keras differ.
"""

import types

import keras


def separate_replica_seeds(model):
    """Lets every seed generator inside `model` fold the replica's number into the seeds that it gives.

    With one replica the seeds stay as they were. The states of the generators, which files hold, stay equal on all
    replicas; a run is a function of its seeds and of the number of replicas.

    Args:
        model: a keras model; the layers that are inside it now are the ones meant, whoever made them.
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
