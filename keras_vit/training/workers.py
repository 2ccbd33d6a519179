"""What the processes and replicas of one training run must know of each other."""

import keras
import numpy as np


def strategy_of(model):
    """The `tf.distribute` strategy that a model was made under, None on other backends."""
    return model.distribute_strategy if keras.backend.backend() == "tensorflow" else None


def worker_count(model):
    """Number of processes that train together."""
    resolver = _resolver(model)
    if resolver is None:
        return 1
    return max(1, sum(len(resolver.cluster_spec().as_dict().get(job, ())) for job in ("chief", "worker")))


def is_chief(model):
    """Whether this process writes the files."""
    resolver = _resolver(model)
    if resolver is None or not resolver.task_type or resolver.task_type == "chief":
        return True
    return resolver.task_type == "worker" and resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs


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


def any_worker(model, flag):
    """Whether `flag` is true in any process; all must call together."""
    if worker_count(model) == 1:
        return flag
    return bool(gather(model, [np.int32(flag)] * len(local_replicas(model))).any())


def _gather_unordered(model, local):
    import tensorflow as tf

    strategy, remaining = strategy_of(model), iter(local)
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(remaining))[tf.newaxis])
    return strategy.gather(values, axis=0).numpy()


def _resolver(model):
    return getattr(strategy_of(model), "cluster_resolver", None)
