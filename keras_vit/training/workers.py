"""What the processes and replicas of one training run must know of each other."""

import keras
import numpy as np


def strategy_of(model):
    """The `tf.distribute` strategy that a model was made under, None on other backends."""
    return model.distribute_strategy if keras.backend.backend() == "tensorflow" else None


def place(strategy):
    """Returns the index of this process and the number of processes that train together; a chief comes first."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or not strategy.extended._in_multi_worker_mode():  # a TPU's names machines, not processes
        return 0, 1
    jobs = resolver.cluster_spec().as_dict()
    chiefs, others = len(jobs.get("chief", ())), len(jobs.get("worker", ()))
    return resolver.task_id + (chiefs if resolver.task_type == "worker" else 0), chiefs + others


def worker_count(model):
    """Number of processes that train together."""
    return place(strategy_of(model))[1]


def is_chief(model):
    """Whether this process writes the files."""
    return place(strategy_of(model))[0] == 0


def replica_count(model):
    strategy = strategy_of(model)
    return 1 if strategy is None else strategy.num_replicas_in_sync


def local_replicas(model):
    """The numbers of this process's replicas among all."""
    strategy = strategy_of(model)
    if strategy is None:
        return [0]
    ids = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    return [int(i) for i in strategy.experimental_local_results(ids)]


def local_parts(variable):
    """The copies that this process's replicas have of a variable; the variable itself where there is but one."""
    return list(getattr(variable.value, "values", None) or [variable])


def gather(model, local):
    """Returns the arrays of all replicas, stacked in the order of the replicas.

    Args:
        model: it tells the strategy.
        local: one array of equal shape per replica of this process. All processes must call together.
    """
    if worker_count(model) == 1:
        return np.stack(local)
    everywhere = _gather_unordered(model, local)
    ids = _gather_unordered(model, [np.int32(replica) for replica in local_replicas(model)])
    return everywhere[np.argsort(ids)]


def largest(model, number):
    """The largest of the `number`s, at least 0, of all processes, so 0 where none has any; all must call together."""
    if worker_count(model) == 1:
        return number
    return int(_gather_unordered(model, [np.int32(number)] * len(local_replicas(model))).max())


def _gather_unordered(model, local):
    import tensorflow as tf

    strategy, remaining = strategy_of(model), iter(local)
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(remaining))[tf.newaxis])
    return strategy.gather(values, axis=0).numpy()
