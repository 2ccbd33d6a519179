"""fit, evaluate and predict under tf.distribute, with the same results as on one device.

Keras fails to build a model from a batch that is distributed over replicas (keras-team/keras issue 20585) and to loop
over several steps with such a batch (issue 19246). It distributes files instead of rows among workers, weights a
replica with fewer rows as much as one with more, reports the metrics of one replica during an epoch, and draws the same
dropout mask on every replica. Delete a correction when tests/compat/test_optimizers.py, test_replica_seeds.py or
test_collective_keys.py shows that Keras or TensorFlow no longer needs it.

Keras divides the mean of each loss, and each added loss, by the number of replicas, and sums over the replicas. A
`compute_loss` in this package must do the same: combine only `super().compute_loss`, Keras's losses and numeric
factors.
"""

import inspect
import itertools
import math
import types

import keras
import tensorflow as tf

from keras_vit.compat.batch_parts import (
    LOOKED_AT,
    BackendFit,
    add,
    count_parts,
    first_tensor,
    loss_weight,
    share,
    take_part,
)
from keras_vit.compat.inference import for_inference
from keras_vit.compat.labels import check_labels, label_rules
from keras_vit.compat.tensorflow_optimizers import correct_for_replicas, fuse_updates

_GROUPS_PER_STRATEGY = 1000
_starts = itertools.count(_GROUPS_PER_STRATEGY, _GROUPS_PER_STRATEGY)


class TensorFlowFit(BackendFit):
    """Correct `fit` under tf.distribute; a mixin for `keras.Model`, see fit.py."""

    _can_split = True

    def compile(self, **arguments):
        own_loss = type(self).compute_loss.__module__.split(".")[0] not in ("keras", "keras_vit")
        if own_loss and self._replicas > 1:
            raise ValueError(
                "compute_loss must not be overridden on several replicas, as its loss would count once per replica; "
                f"got {type(self).__name__} on {self._replicas} replicas (pass the loss to compile)"
            )
        if arguments.get("jit_compile") is True and self._has_strategy:
            raise ValueError("jit_compile must be 'auto' or False under tf.distribute; got jit_compile=True")
        super().compile(**arguments)
        if self.optimizer is not None:
            fuse_updates(self.optimizer)
            if self._replicas > 1:
                correct_for_replicas(self.optimizer)

    def train_step(self, data):
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        if not self.trainable_weights or (self._microbatches == 1 and replicas == 1):
            return super().train_step(data)
        whole = self._whole_batch(data)
        gradients, parts = None, count_parts(data, self._microbatches)
        for part in range(parts):
            part_gradients, logs = self._gradients(take_part(_after(gradients, data), part, parts), *whole)
            gradients = add(gradients, part_gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return logs

    def _whole_batch(self, data):
        """Return the rows of the whole batch, and its weight / replicas (Keras divides mean losses by the replicas)."""
        x, _, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        rows, weight = tf.cast(tf.shape(first_tensor(x))[0], tf.float32), loss_weight(self, x, sample_weight)
        here = [rows, tf.cast(rows == 0, tf.float32), *([] if weight is None else [weight])]
        rows, empty, *weights = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)
        if self._compares_rows:  # `_filled_up` would add an image to those that are compared
            tf.debugging.assert_equal(
                empty, 0.0, "each replica must have an image of every batch (drop_remainder=True)"
            )
        return rows, weights[0] / self._replicas if weights else None

    def _gradients(self, data, whole_rows, whole_weight):
        """Run forward and backward pass of one part, as in `keras.Model.train_step`; return gradients and logs."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        rows = tf.shape(first_tensor(x))[0]
        filled_x, filled_y, filled_weight = _filled_up((x, y, sample_weight), rows)
        with tf.GradientTape() as tape:
            takes_training = "training" in inspect.signature(self.call).parameters
            y_pred = self(filled_x, training=True) if takes_training else self(filled_x)
            if whole_weight is None and sample_weight is None:  # the row added by `_filled_up` must not count in a sum
                filled_weight = _filled_up(tf.ones([rows] + [1] * (len(first_tensor(y_pred).shape) - 2)), rows)
            loss = self.compute_loss(filled_x, filled_y, y_pred, filled_weight, training=True)
            loss *= tf.cast(share(loss_weight(self, x, sample_weight), whole_weight), loss.dtype)
            by_row = tf.math.divide_no_nan(tf.cast(whole_rows, loss.dtype), tf.cast(rows, loss.dtype))
            self.metrics[0].update_state(loss * by_row, sample_weight=rows)  # averages the losses over the rows
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_weights)
        y_pred = _map(lambda tensor: tensor[:rows], y_pred)
        return gradients, self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data):
        with for_inference(self.jit_compile):
            return super().test_step(data)

    def predict_step(self, data):
        with for_inference(self.jit_compile):
            return super().predict_step(data)

    def make_train_function(self, force=False):
        if self.train_function is not None and not force:
            return
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None and not optimizer.built and self.trainable_variables:
            with self.distribute_strategy.scope():  # a step that creates variables would be traced twice
                optimizer.build(self.trainable_variables)
        self.train_function = self._function("train_function", self.train_step)

    def make_test_function(self, force=False):
        if force or self.test_function is None:
            self.test_function = self._function("test_function", self.test_step)

    def make_predict_function(self, force=False):
        if self.predict_function is not None and not force:
            return
        super().make_predict_function(force=True)
        function = self.predict_function

        def look_and_predict(data):
            if "predict_function" in self._looks:
                self._looks.pop("predict_function")(self._images_in(self._of_replica(data[0])))
            return function(data)

        self.predict_function = look_and_predict

    def _function(self, name, step_function):
        """Return a function of an iterator that runs `steps_per_execution` steps, or the remaining ones."""
        if self._has_strategy:
            separate_replica_seeds(self)
        strategy, rules = self.distribute_strategy, label_rules(self)
        compiled = (lambda function, **_: function) if self.run_eagerly else tf.function
        none, one, some = map(tf.constant, (0, 1, LOOKED_AT))

        @tf.autograph.experimental.do_not_convert
        def run(data):
            outputs = strategy.run(step_function, args=(data,))
            # Only the logs of a custom train_step are used; `_results` replaces metrics by those of all replicas.
            return keras.tree.map_structure(lambda x: _mean(strategy.experimental_local_results(x)), outputs)

        run = compiled(run, reduce_retracing=True, jit_compile=self.jit_compile)

        def step(data):  # a missing target or weight is an Optional
            data = keras.tree.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, data)
            _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            checks = check_labels(rules, y, strategy.experimental_local_results, not tf.executing_eagerly())
            with tf.control_dependencies(checks):  # which operations without side effects do not wait for
                return run(_map(tf.identity, data) if checks else data)

        @tf.autograph.experimental.do_not_convert
        def steps(iterator, count, rows):
            data = iterator.get_next()
            images = self._images_in(self._of_replica(data))
            logs = step(data)
            if self.steps_per_execution > 1:
                _, logs = tf.while_loop(
                    lambda done, _: done < count, lambda done, _: (done + 1, step(iterator.get_next())), (1, logs)
                )
            return self._results(logs), None if images is None else images[:rows]

        steps = compiled(steps, reduce_retracing=True)

        def function(data):
            look, seen, logs = self._looks.pop(name, None), None, None
            count = data.take(self.steps_per_execution) if isinstance(data, _Counted) else None
            if count or isinstance(data, tf.data.Iterator):
                iterator, count = (data.iterator, tf.constant(count)) if count else (data, one)
                logs, seen = steps(iterator, count, some if look else none)
            else:
                for batch in itertools.islice(data, self.steps_per_execution):
                    seen = self._images_in(self._of_replica(batch)) if seen is None and look else seen
                    logs = step(batch)
                if logs is None:
                    raise StopIteration
                logs = self._results(logs)
            if look and seen is not None:
                look(seen)
            return logs

        return function

    def _of_replica(self, data):
        """Return the part of a batch that the first replica of this process gets."""
        local = self.distribute_strategy.experimental_local_results
        return keras.tree.map_structure(lambda x: x if x is None else local(x)[0], data)

    def _results(self, logs):
        """Return the metrics of all replicas if a step returned its metrics, else what it returned."""
        if self._replicas == 1:
            return logs
        metrics = self.get_metrics_result()
        return metrics if isinstance(logs, dict) and logs.keys() == metrics.keys() else logs

    def predict_on_batch(self, x):
        outputs = super().predict_on_batch(x)
        if self.distribute_strategy.num_replicas_in_sync == 1:
            return outputs
        rows = len(first_tensor(x))  # every replica has computed all rows
        return keras.tree.map_structure(lambda output: output[:rows], outputs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is None:
            super()._maybe_symbolic_build(data_batch=data_batch)
            return
        if self._has_strategy or self._steps_done is not None:
            with self.distribute_strategy.scope():
                self._symbolic_build(iterator, data_batch=_specification(iterator))
        if self._has_strategy or self.steps_per_execution > 1:
            iterator._distributed_dataset = _CountedDataset(iterator)

    @property
    def _has_strategy(self):
        with self.distribute_strategy.scope():
            return tf.distribute.has_strategy()

    @property
    def _replicas(self):
        return self.distribute_strategy.num_replicas_in_sync

    def _portable(self, config):
        return {**config, "jit_compile": "auto"} if self._has_strategy else config

    def _shared_out(self, data, function):
        """Give each worker its rows of every batch; Keras would distribute files."""
        options = tf.data.experimental.AutoShardPolicy
        is_plain = isinstance(data, tf.data.Dataset) and self._has_strategy
        if not is_plain or data.options().experimental_distribute.auto_shard_policy != options.AUTO:
            return data
        by_rows = tf.data.Options()
        by_rows.experimental_distribute.auto_shard_policy = options.DATA
        return data.with_options(by_rows)


def _after(gradients, data):
    """Return `data` with a dependency that delays its use until the gradients are computed."""
    if gradients is None:
        return data
    with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
        return _map(tf.identity, data)


def _map(function, structure):
    return keras.tree.map_structure(lambda tensor: tensor if tensor is None else function(tensor), structure)


def _filled_up(data, rows):
    """Return the data, with a row of zeros if it is empty; a convolution's gradient fails without rows on a CPU."""
    if tf.get_static_value(rows):
        return data
    missing = tf.maximum(1 - rows, 0)
    return _map(lambda tensor: tf.pad(tensor, [[0, missing]] + [[0, 0]] * (len(tensor.shape) - 1)), data)


def _mean(values):
    return values[0] if len(values) == 1 else tf.reduce_mean(tf.stack(values), axis=0)


class _CountedDataset:
    """The data of a Keras epoch iterator; its iterators count the remaining batches."""

    def __init__(self, epoch_iterator):
        self.dataset = getattr(epoch_iterator._distributed_dataset, "dataset", epoch_iterator._distributed_dataset)
        batches = epoch_iterator.data_adapter.num_batches
        self._batches = math.inf if batches is None and epoch_iterator.steps_per_epoch else batches

    def __iter__(self):
        return _Counted(iter(self.dataset), self._batches)


class _Counted:
    """An iterator over batches.

    A step that TensorFlow starts after the end of the data is partly counted, so the length of its loop must be known.
    If the length of the data is unknown, batches are fetched one at a time outside of the loop.
    """

    def __init__(self, iterator, batches):
        self.iterator = iterator
        self._left = batches

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iterator)

    def take(self, steps):
        """Return how many of the next `steps` batches exist; None if it is unknown."""
        if self._left is None:
            return None
        count = min(steps, self._left)
        self._left -= count
        return count


def _specification(epoch_iterator):
    """Return shapes and dtypes of one replica's batch, without reading data."""

    def of_one_replica(spec):
        # a missing target or weight; TensorFlow 2.20 has no tf.NoneTensorSpec
        if isinstance(spec, tf.OptionalSpec) or spec.value_type is type(None):
            return None
        return tf.nest.flatten(spec, expand_composites=True)[0]  # a PerReplicaSpec has one for each replica

    dataset = getattr(epoch_iterator._distributed_dataset, "dataset", epoch_iterator._distributed_dataset)
    return keras.tree.map_structure(of_one_replica, dataset.element_spec)


def separate_replica_seeds(model):
    """Make every seed generator inside `model` combine its seeds with the number of the replica.

    Keras's seed generators have the same state on every replica, so Dropout draws the same mask everywhere. With one
    replica the seeds do not change. The saved states of the generators stay equal on all replicas, so a run depends on
    its seeds and the number of replicas.

    Args:
        model: a Keras model; only the layers that it has now are changed.
    """
    for layer in model._flatten_layers(include_self=True, recursive=True):
        for generator in layer._seed_generators:
            vars(generator)["next"] = types.MethodType(_next, generator)


def _next(self, ordered=True):
    seed = keras.random.SeedGenerator.next(self, ordered)
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(context.replica_id_in_sync_group, seed.dtype))


def mirrored_strategy(devices=None):
    """Return a `tf.distribute.MirroredStrategy` over `devices` with its own numbers for collective operations.

    Every strategy of TensorFlow numbers its device groups from 1, so the collective operations of a second strategy in
    the process are mistaken for those of the first and fail if their shapes differ. As in TensorFlow's own tests, the
    first number is changed.
    """
    base = tf.distribute.MirroredStrategy._collective_key_base
    tf.distribute.MirroredStrategy._collective_key_base = base + next(_starts)
    try:
        return tf.distribute.MirroredStrategy(devices)
    finally:
        tf.distribute.MirroredStrategy._collective_key_base = base
