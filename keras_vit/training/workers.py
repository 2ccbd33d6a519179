"""The processes and replicas of one training run: their indices, and what they gather and save together."""

import concurrent.futures

import keras
import numpy as np
import tensorflow as tf

from keras_vit.compat.fit import has_workers
from keras_vit.compat.jax_fit import on_host
from keras_vit.models.layer_states import enable_lora_as_in
from keras_vit.training.checkpoint_files import write_atomically


def strategy_of(model):
    """Return the `tf.distribute` strategy that a model was created under, None on other backends."""
    return model.distribute_strategy if keras.backend.backend() == "tensorflow" else None


def place(strategy):
    """Return (index of this process, number of processes) of the run; a chief, if any, has index 0."""
    distribution = keras.distribution.distribution()  # on JAX, the current one
    if distribution is not None:
        import jax

        return jax.process_index(), jax.process_count()
    resolver = getattr(strategy, "cluster_resolver", None)
    # The resolver of a TPU may list several machines, but one process trains on all of them.
    if resolver is None or not has_workers(strategy):
        return 0, 1
    jobs = resolver.cluster_spec().as_dict()
    chiefs, others = len(jobs.get("chief", ())), len(jobs.get("worker", ()))
    return resolver.task_id + (chiefs if resolver.task_type == "worker" else 0), chiefs + others


def worker_count(model):
    """Return the number of processes that train together."""
    return place(strategy_of(model))[1]


def is_chief(model):
    """Whether this process writes the files."""
    return place(strategy_of(model))[0] == 0


def shares_arrays(model):
    """Whether the variables are JAX arrays that several processes hold together."""
    return strategy_of(model) is None and worker_count(model) > 1


def replica_count(model):
    strategy = strategy_of(model)
    return 1 if strategy is None else strategy.num_replicas_in_sync


def local_replicas(model):
    """Return the indices of this process's replicas among all replicas."""
    strategy = strategy_of(model)
    if strategy is None:
        return [0]
    ids = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    return [int(i) for i in strategy.experimental_local_results(ids)]


def local_parts(variable):
    """Return the copies of a variable on this process's replicas; the variable itself if there is only one."""
    return list(getattr(variable.value, "values", None) or [variable])


def gather(model, local):
    """Return the arrays of all replicas, stacked in the order of the replicas.

    Args:
        model: a model created under the strategy.
        local: one array of equal shape per replica of this process. All processes must call this together.
    """
    if worker_count(model) == 1:
        return np.stack(local)
    everywhere = _gather_unordered(model, local)
    if shares_arrays(model):
        return everywhere
    ids = _gather_unordered(model, [np.int32(replica) for replica in local_replicas(model)])
    return everywhere[np.argsort(ids)]


def largest(model, number):
    """Return the maximum of `number`, at least 0, over all processes; all of them must call this together."""
    if worker_count(model) == 1:
        return number
    return int(_gather_unordered(model, [np.int32(number)] * len(local_replicas(model))).max())


def _gather_unordered(model, local):
    if shares_arrays(model):
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(local[0])
    strategy, remaining = strategy_of(model), iter(local)
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(remaining))[tf.newaxis])
    return strategy.gather(values, axis=0).numpy()


def save_model(model, path):
    """Write a `.keras` file atomically; all workers must call this, and the first one writes.

    With several workers, the file contains no optimizer. Keras's own saving would create variables, which all workers
    of a strategy must do together; so a thread outside the strategy saves a copy.
    """
    if worker_count(model) == 1:
        write_atomically(path, model.save)
        return

    def save_copy(values):
        copy = enable_lora_as_in(model, type(model).from_config(model.get_config()))
        copy.set_weights(values)
        write_atomically(path, copy.save)

    values = [value_of(variable) for variable in model.weights]
    if is_chief(model):
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(save_copy, values).result()


def value_of(variable):
    """Return the value of a variable as a NumPy array; on JAX, all workers must call this."""
    value = local_parts(variable)[0]
    return on_host(value.value) if keras.backend.backend() == "jax" else keras.ops.convert_to_numpy(value)
