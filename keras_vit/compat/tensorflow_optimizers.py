"""Keras's optimizers on TensorFlow: one operation per weight, and the same results on replicas as on one device.

Keras composes an update from elementary operations. With Adam these are about 35 for each weight, and each passes over
memory. Keras also repeats shared computations for every weight: the powers of beta and, with weight decay, the learning
rate with its whole schedule. This took half of the time until the first step of a ViT-B/16. TensorFlow's kernels
`ResourceApplyAdam`, `ResourceApplyKerasMomentum` and `ResourceApplyGradientDescent`, which XLA also supports, do the
same arithmetic in one pass. Weight decay adds three operations, and the norm for `global_clipnorm` one, `L2Loss`.
Results differ by rounding: Adam's kernel computes 1 - beta_2 in float32, which for 0.999 changes second moments by
1.3e-5 of their value and steps by half of that. Variables, their names and saved files do not change.

Under several replicas, Keras clips the gradients of each replica before it adds them, and its gradient accumulation and
overwriting with the moving average fail with `merge_call called while defining a new graph` (keras-team/keras issue
20582).

The methods are replaced on the instance, because `load_model` finds an optimizer by its class. Delete
`fuse_updates` when tests/compat/test_fused_updates.py, and `correct_for_replicas` when test_optimizers.py, shows that
Keras no longer needs it.
"""

import types

import keras
import tensorflow as tf
from keras import ops

from keras_vit.compat import private_names, saved_objects
from keras_vit.layers.forms import is_plain_cpu


def fuse_updates(optimizer):
    """Make `optimizer` update each weight with one kernel; results differ only by rounding.

    It supports `keras.optimizers.Adam` (without `amsgrad`), `AdamW`, `SGD` and those of saved_objects.py, also
    inside a `LossScaleOptimizer` or a `MultiOptimizer`. Other classes, including subclasses, do not change. Weights
    that are not float32 or have a sparse gradient keep Keras's update.

    Args:
        optimizer: a `keras.optimizers.Optimizer` of the TensorFlow backend, built or not.
    """
    for inner in inner_optimizers(optimizer):
        fuse_updates(inner)
    is_known = private_names.has("_distributed_tf_update_step")
    if type(optimizer) in _UPDATES and is_known and not getattr(optimizer, "amsgrad", False):
        _replace(optimizer, _FUSED)


def _replace(optimizer, methods):
    for name, method in methods.items():
        vars(optimizer)[name] = types.MethodType(method, optimizer)  # bypasses Keras's tracking


def _clip_gradients(self, gradients):
    """Replace the method of the same name: the global norm takes one pass over each gradient and stores nothing."""
    is_plain = all(isinstance(gradient, tf.Tensor) and gradient.dtype == tf.float32 for gradient in gradients)
    if is_plain and self.global_clipnorm and not getattr(self, "modules", None):
        return tf.clip_by_global_norm(gradients, self.global_clipnorm)[0]
    return type(self)._clip_gradients(self, gradients)


def _update_weights(self, distribution, grads_and_vars, learning_rate):
    """Replace `_distributed_tf_update_step`."""
    updates = {}  # the updates of this step by device and dtype

    def update(variable, gradient, learning_rate):
        where = variable.device, variable.dtype
        if where not in updates:
            updates[where] = _UPDATES[type(self)](self, learning_rate, variable.dtype)
        updates[where](variable, gradient)

    # Updates between the operations of the backward pass leave TensorFlow's memory on a CPU in pieces: the peak of a
    # float32 ViT-B/16 is then 340 MiB higher with batches of 8, and 290 lower with a batch of 1.
    gradients = [gradient for gradient, _ in grads_and_vars if isinstance(gradient, tf.Tensor)]
    with tf.control_dependencies(gradients if is_plain_cpu() else []):
        for gradient, variable in grads_and_vars:
            distribution.extended.update(variable, update, args=(gradient, learning_rate), group=False)


class _Update:
    """The updates of one step on one device; shared values are computed once.

    Args:
        optimizer: a built optimizer.
        learning_rate: scalar.
        dtype: dtype of the weights.
    """

    def __init__(self, optimizer, learning_rate, dtype):
        self.optimizer = optimizer
        self._learning_rate = ops.cast(learning_rate, dtype)
        self._rates = {}

    def __call__(self, variable, gradient):
        index = self.optimizer._get_variable_index(variable)
        rate, decay = self._rate(index)
        if decay is not None and self.optimizer._use_weight_decay(variable):
            variable.assign_sub(variable * decay, read_value=False)
        is_dense = isinstance(gradient, tf.Tensor) and gradient.shape.is_compatible_with(variable.shape)
        has_slots = all(hasattr(self.optimizer, name) for name in self._slots)
        if is_dense and has_slots and variable.dtype == tf.float32:
            self._fused(tf.raw_ops, index, variable, tf.cast(gradient, tf.float32), rate)
        else:
            self._stock.update_step(self.optimizer, gradient, variable, rate)

    def _rate(self, index):
        """Return the learning rate of a weight and its decay per step, None for no decay."""
        factors, of_encoder = (getattr(self.optimizer, name, None) for name in ("rate_factors", "of_encoder"))
        key = factors and factors[index], of_encoder and of_encoder[index]
        if key not in self._rates:
            scheduled, factor = saved_objects.rate_of(self.optimizer, index)
            rate = self._learning_rate if scheduled is None else ops.cast(scheduled, self._learning_rate.dtype)
            rate = rate if factor == 1.0 else rate * factor
            decay = saved_objects.weight_decay_of(self.optimizer)
            self._rates[key] = rate, rate * decay if self.optimizer.weight_decay else None
        return self._rates[key]


class _Adam(_Update):
    _stock, _slots = keras.optimizers.Adam, ("_momentums", "_velocities")

    def __init__(self, optimizer, learning_rate, dtype):
        super().__init__(optimizer, learning_rate, dtype)
        count = ops.cast(optimizer.iterations + 1, dtype)
        beta1, beta2, epsilon = (ops.cast(x, dtype) for x in (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon))
        self._numbers = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self._numbers |= {"beta1_power": ops.power(beta1, count), "beta2_power": ops.power(beta2, count)}

    def _fused(self, kernels, index, variable, gradient, rate):
        m, v = self.optimizer._momentums[index].value, self.optimizer._velocities[index].value
        slots = {"m": m.handle, "v": v.handle}
        kernels.ResourceApplyAdam(var=variable.handle, **slots, **self._numbers, lr=rate, grad=gradient)


class _SGD(_Update):
    _stock, _slots = keras.optimizers.SGD, ("momentums",)

    def __init__(self, optimizer, learning_rate, dtype):
        super().__init__(optimizer, learning_rate, dtype)
        self._momentum = ops.cast(optimizer.momentum, dtype)

    def _fused(self, kernels, index, variable, gradient, rate):
        if not self.optimizer.momentums:
            kernels.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        options = {"momentum": self._momentum, "use_nesterov": self.optimizer.nesterov}
        accum = self.optimizer.momentums[index].value.handle
        kernels.ResourceApplyKerasMomentum(var=variable.handle, accum=accum, lr=rate, grad=gradient, **options)


# class of optimizer -> its update
_UPDATES = {
    keras.optimizers.Adam: _Adam,
    keras.optimizers.AdamW: _Adam,
    keras.optimizers.SGD: _SGD,
    saved_objects.AdamW: _Adam,
    saved_objects.SGD: _SGD,
}
# method -> its replacement
_FUSED = {
    "_clip_gradients": _clip_gradients,
    "_apply_weight_decay": lambda self, variables: None,  # called before the update, which decays each weight itself
    "_distributed_tf_update_step": _update_weights,
}


def correct_for_replicas(optimizer):
    """Make `optimizer`, of any stock class, give the same results on several replicas as on one device.

    Clipping acts on the sum over the replicas. `gradient_accumulation_steps=k` updates the weights in every k-th
    step, and `use_ema` and `ema_overwrite_frequency` work as on one device. On one device nothing changes.

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
            "_all_reduce_sum_gradients": lambda self, grads_and_vars: list(grads_and_vars),  # they are reduced already
        }
    _replace(optimizer, replaced)
    for one in inner:
        correct_for_replicas(one)


def inner_optimizers(optimizer):
    """Return the inner optimizers of a wrapper from Keras; Keras 3.12 does not have `MultiOptimizer`."""
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

    iterations = self.variables[0]  # `self.iterations` counts the updates
    _cond((iterations + 1) % steps == 0, update, accumulate, grads)


def _cond(predicate, if_true, if_false=lambda *_: None, arguments=()):
    """Run `tf.cond` in a replica context; its branches are functions of `arguments` that may leave that context.

    If replicas are threads (`merge_call`), a branch inside one replica cannot wait for the others. The condition is
    therefore evaluated outside of the replicas, and each branch enters them again.
    """
    if _is_one_program():
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
    function(*arguments)
    return tf.constant(0)


def _is_one_program():
    """Return whether all replicas are one program, so that no `merge_call` is needed: on TPUs, or with XLA."""
    is_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    return is_tpu or tf.__internal__.distribute.strategy_supports_no_merge_call()


def _check_finite(self, grads):
    """Replace the method of `LossScaleOptimizer`, which checks only the first replica."""
    infinite = tf.cast(~type(self).check_finite(self, grads), tf.int32)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, infinite) == 0
