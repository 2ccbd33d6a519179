"""Stock optimizers under several replicas of tf.distribute: clipping, accumulation and averages of the whole batch.

Keras clips the gradients of each replica before it adds them, and its gradient accumulation and overwriting with the
moving average fail with `merge_call called while defining a new graph` (keras-team/keras issue 20582). The methods are
replaced on the instance, because `load_model` finds an optimizer by its class. Delete this file when
tests/compat/test_optimizers.py finds that Keras has fixed both.
"""

import types


def correct_for_replicas(optimizer):
    """Make `optimizer`, of any stock class, give the same results on several replicas as on one device.

    Clipping acts on the sum over the replicas. `gradient_accumulation_steps=k` applies every k-th step, and `use_ema`
    and `ema_overwrite_frequency` work as on one device. On one device nothing changes.

    Args:
        optimizer: a `keras.optimizers.Optimizer` of the TensorFlow backend; the inner optimizers of a
            `LossScaleOptimizer` or a `MultiOptimizer` are corrected as well.
    """
    inner = inner_optimizers(optimizer)
    if inner:
        replaced = {"check_finite": _check_finite} if hasattr(optimizer, "check_finite") else {}
    else:
        replaced = {
            "_backend_apply_gradients": _apply_gradients,
            "_all_reduce_sum_gradients": _leave_reduced_gradients,
        }
    for name, method in replaced.items():
        vars(optimizer)[name] = types.MethodType(method, optimizer)  # bypasses Keras's tracking
    for one in inner:
        correct_for_replicas(one)


def inner_optimizers(optimizer):
    """Return the inner optimizers of one of Keras's wrappers; MultiOptimizer is newer than Keras 3.12."""
    one = getattr(optimizer, "inner_optimizer", None)
    return [*([] if one is None else [one]), *getattr(optimizer, "_inner_optimizers", ())]


def _apply_gradients(self, grads, variables):
    """Replace `_backend_apply_gradients`: the same steps in the same order, on gradients that are summed first."""
    grads = [grad for grad, _ in type(self)._all_reduce_sum_gradients(self, zip(grads, variables, strict=True))]
    if self.gradient_accumulation_steps:
        _accumulate(self, grads, variables)
    else:
        _update(self, grads, variables)
    if self.use_ema:
        self._update_model_variables_moving_average(self._trainable_variables)
        if self.ema_overwrite_frequency:
            _cond(
                (self.iterations + 1) % self.ema_overwrite_frequency == 0,
                lambda: self._overwrite_model_variables_with_average_value(self._trainable_variables),
            )


def _leave_reduced_gradients(self, grads_and_vars):
    return list(grads_and_vars)


def _update(self, grads, variables):
    grads = self._clip_gradients(grads)
    self._apply_weight_decay(variables)
    self._backend_update_step(grads, variables, self.learning_rate)


def _accumulate(self, grads, variables):
    steps = self.gradient_accumulation_steps
    sums = [self._accumulated_gradients[self._get_variable_index(variable)] for variable in variables]

    def update(*grads):
        _update(self, [(grad + total) / steps for grad, total in zip(grads, sums, strict=True)], variables)
        self._backend_reset_gradient_accumulators()

    def accumulate(*grads):
        self._backend_increment_gradient_accumulators(grads, sums)

    _cond((self._iterations + 1) % steps == 0, update, accumulate, grads)


def _cond(predicate, if_true, if_false=lambda *_: None, arguments=()):
    """Run `tf.cond` in a replica context; its branches are functions of `arguments` that may leave that context.

    If replicas are threads (`merge_call`), a branch inside one cannot wait for the others. The condition is therefore
    evaluated outside, and each branch enters the replicas again.
    """
    import tensorflow as tf

    if _is_one_program(tf):
        tf.cond(predicate, lambda: _nothing(if_true, arguments), lambda: _nothing(if_false, arguments))
        return

    def branch(strategy, predicate, *arguments):
        def enter(function):
            strategy.extended.call_for_each_replica(_nothing, args=(function, arguments))
            return tf.constant(0)

        first = strategy.experimental_local_results(predicate)[0]  # equal on every replica
        tf.cond(first, lambda: enter(if_true), lambda: enter(if_false))

    tf.distribute.get_replica_context().merge_call(branch, args=(predicate, *arguments))


def _nothing(function, arguments):
    import tensorflow as tf

    function(*arguments)
    return tf.constant(0)


def _is_one_program(tf):
    """Return whether all replicas are one program with a plain `merge_call`: on TPUs, and if XLA needs none."""
    is_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    return is_tpu or tf.__internal__.distribute.strategy_supports_no_merge_call()


def _check_finite(self, grads):
    """Replace the method of `LossScaleOptimizer`, which checks only the first replica."""
    import tensorflow as tf

    finite = type(self).check_finite(self, grads)
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(~finite, tf.int32)) == 0
