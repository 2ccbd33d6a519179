"""Computes the losses of self-distillation on one device and on several, in a process of its own.

`python loss_devices.py FILE` writes the largest difference of each, on two replicas of TensorFlow with 5 and 3 of 8
rows, or on four devices of JAX.
"""

import json
import os
import pathlib
import sys

from device_runs import split_cpu

ROWS = 5, 3  # of the replicas


def results(features, logits, weights):
    """What is compared, of all rows or of those of one replica: arrays by name."""
    from keras import ops

    from keras_vit.models import self_distillation_loss as losses

    center = ops.zeros(logits.shape[-1])
    return {
        "sinkhorn_knopp": losses.sinkhorn_knopp(logits, 0.05),
        "of those that count": losses.sinkhorn_knopp(logits, 0.05, weights=weights),
        "without any": losses.sinkhorn_knopp(logits, 0.05, weights=0 * weights),
        "koleo": ops.mean(losses.koleo(features))[None],
        "mean_of_patches": losses.mean_of_patches(logits, weights, center)[None],
    }


def spread(features):
    """The loss whose gradient is compared; a replica's is divided by the replicas, as Keras does."""
    from keras import ops

    from keras_vit.models.self_distillation_loss import koleo

    return ops.mean(koleo(features))


def on_replicas(arrays):
    """Each array of all replicas; the one that all have, once."""
    import numpy as np
    import tensorflow as tf

    import keras_vit

    with keras_vit.distribution("mirrored", devices=["CPU:0", "CPU:1"]) as devices:
        strategy, ends = devices.strategy, np.cumsum((0, *ROWS))

        def rows(context, array):
            number = context.replica_id_in_sync_group
            return tf.constant(array[ends[number] : ends[number + 1]])

        given = [
            strategy.experimental_distribute_values_from_function(lambda context, array=array: rows(context, array))
            for array in arrays
        ]

        def replica(features, *others):
            with tf.GradientTape() as tape:
                tape.watch(features)
                loss = spread(features) / len(ROWS)
            return {**results(features, *others), "gradient": tape.gradient(loss, features)}

        found = tf.function(lambda: strategy.run(replica, given))()
        parts = {name: [one.numpy() for one in strategy.experimental_local_results(x)] for name, x in found.items()}
    return {name: np.concatenate(part) if len(part[0]) != 1 else np.array(part) for name, part in parts.items()}


def on_jax(arrays, devices):
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    given = [jax.device_put(array, sharding) for array in arrays]
    found = {**jax.jit(results)(*given), "gradient": jax.jit(jax.grad(spread))(given[0])}
    return {name: np.asarray(value) for name, value in found.items()}


def on_one(arrays):
    import keras
    import numpy as np

    if keras.backend.backend() == "jax":
        return on_jax(arrays, 1)
    import tensorflow as tf

    features = tf.constant(arrays[0])
    with tf.GradientTape() as tape:
        tape.watch(features)
        loss = spread(features)
    found = {**results(features, *map(tf.constant, arrays[1:])), "gradient": tape.gradient(loss, features)}
    return {name: np.asarray(value) for name, value in found.items()}


def main(file):
    is_jax = os.environ.get("KERAS_BACKEND") == "jax"
    split_cpu(4 if is_jax else 2)
    import numpy as np

    rng = np.random.default_rng(0)
    features, logits = (rng.normal(size=(sum(ROWS), size)).astype("float32") for size in (6, 12))
    weights = np.array([1, 1, 0, 0, 1, 0, 0, 1], "float32")  # 3 and 1 of the replicas
    arrays = features, logits, weights
    one, several = on_one(arrays), on_jax(arrays, 4) if is_jax else on_replicas(arrays)
    if not is_jax:  # the mean of the means of the replicas
        one["mean_of_patches"] = (logits[[0, 1, 4]].mean(0) + logits[[7]].mean(0))[None] / 2
    found = {name: float(np.abs(several[name] - one[name]).max()) for name in one}
    found["largest"] = {name: float(np.abs(one[name]).max()) for name in one}
    pathlib.Path(file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
