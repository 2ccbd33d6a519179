"""Adam, AdamW and SGD on TensorFlow with one operation per weight; Keras's Adam uses about 35.

Keras 3.15 composes an update of elementary operations, each of which passes over memory, and repeats shared
computations for every weight: the powers of beta and, with weight decay, the learning rate with its whole schedule.
This took half of the time to the first step of a ViT-B/16. TensorFlow's kernels `ResourceApplyAdam`,
`ResourceApplyKerasMomentum` and `ResourceApplyGradientDescent`, which XLA also supports, do the same arithmetic in one
pass. Weight decay adds three operations, and the norm for `global_clipnorm` one, `L2Loss`.

Results differ by rounding: Adam's kernel computes 1 - beta_2 in float32, which for 0.999 changes second moments by
1.3e-5 of their value and steps by half of that. Variables, their names and saved files do not change. The methods are
replaced on the instance, because `load_model` finds an optimizer by its class. Delete this file when
tests/compat/test_fused_updates.py finds that Keras needs no more operations per weight than this file.
"""

import types

import keras
from keras import ops

from keras_vit.compat import per_variable
from keras_vit.compat.optimizers import inner_optimizers


def fuse_updates(optimizer):
    """Make `optimizer` update each weight with one kernel; results differ only by rounding.

    It supports `keras.optimizers.Adam` (without `amsgrad`), `AdamW`, `SGD` and the classes of per_variable.py, also
    inside a `LossScaleOptimizer` or a `MultiOptimizer`. Other classes, including subclasses, do not change. Weights
    that are not float32 or have a sparse gradient keep Keras's update.

    Args:
        optimizer: a `keras.optimizers.Optimizer` of the TensorFlow backend, built or not.
    """
    for inner in inner_optimizers(optimizer):
        fuse_updates(inner)
    if type(optimizer) not in _UPDATES or getattr(optimizer, "amsgrad", False):
        return
    replaced = {
        "_clip_gradients": _clip_gradients,
        "_apply_weight_decay": _leave_to_the_update,
        "_distributed_tf_update_step": _update_weights,
    }
    for name, method in replaced.items():
        vars(optimizer)[name] = types.MethodType(method, optimizer)  # bypasses Keras's tracking


def _clip_gradients(self, gradients):
    """Replace the method of that name: the global norm takes one pass over each gradient and stores nothing."""
    import tensorflow as tf

    is_plain = all(isinstance(gradient, tf.Tensor) and gradient.dtype == tf.float32 for gradient in gradients)
    if is_plain and self.global_clipnorm:
        return tf.clip_by_global_norm(gradients, self.global_clipnorm)[0]
    return type(self)._clip_gradients(self, gradients)


def _leave_to_the_update(self, variables):
    """Replace `_apply_weight_decay`, which Keras calls before the update; the update itself decays each weight."""


def _update_weights(self, distribution, grads_and_vars, learning_rate):
    """Replace `_distributed_tf_update_step`."""
    updates = {}  # of this step, by device and dtype

    def update(variable, gradient, learning_rate):
        where = variable.device, variable.dtype
        if where not in updates:
            updates[where] = _UPDATES[type(self)](self, learning_rate, variable.dtype)
        updates[where](variable, gradient)

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
        import tensorflow as tf

        index = self.optimizer._get_variable_index(variable)
        rate, decay = self._rate(index)
        if decay is not None and self.optimizer._use_weight_decay(variable):
            variable.assign_sub(variable * decay, read_value=False)
        is_dense = isinstance(gradient, tf.Tensor) and gradient.shape.is_compatible_with(variable.shape)
        if is_dense and variable.dtype == tf.float32:
            self._fused(tf.raw_ops, index, variable, tf.cast(gradient, tf.float32), rate)
        else:
            self._stock.update_step(self.optimizer, gradient, variable, rate)

    def _rate(self, index):
        """Return the learning rate of a weight and its decay per step, None for no decay."""
        factors = getattr(self.optimizer, "rate_factors", None)
        factor = 1.0 if factors is None else factors[index]
        if factor not in self._rates:
            rate = self._learning_rate if factor == 1.0 else self._learning_rate * factor
            self._rates[factor] = rate, rate * self.optimizer.weight_decay if self.optimizer.weight_decay else None
        return self._rates[factor]


class _Adam(_Update):
    _stock = keras.optimizers.Adam

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
    _stock = keras.optimizers.SGD

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
    per_variable.AdamW: _Adam,
    per_variable.SGD: _SGD,
}
