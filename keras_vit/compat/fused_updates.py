"""Stock Adam, AdamW and SGD on TensorFlow with one operation per weight, where Keras's Adam has some 35.

Keras 3.15 writes an update out of elementary operations, of which each passes over memory, and repeats for every weight
what is the same for all: the powers of beta, with weight decay the learning rate and all of its schedule. Half of the
time until the first step of ViT-B/16 went there. TensorFlow's kernels `ResourceApplyAdam`, `ResourceApplyKerasMomentum`
and `ResourceApplyGradientDescent`, which XLA knows too, do the same arithmetic in one pass; a decay is three operations
more, and the norm for `global_clipnorm` one, `L2Loss`. Numbers differ by rounding: the kernel of Adam takes 1 - beta_2
in float32, which for 0.999 puts second moments 1.3e-5 of their value off and steps half of that. Variables, their names
and what is saved stay as they were. The methods of the one optimizer are replaced, for `load_model` finds an optimizer
by its class. Delete this file when tests/compat/test_fused_updates.py finds that Keras adds no more operations per
weight than this does.
"""

import types

import keras
from keras import ops

from keras_vit.compat import per_variable
from keras_vit.compat.optimizers import inner_optimizers


def fuse_updates(optimizer):
    """Makes `optimizer` update each weight by one kernel, with the numbers that it gave before up to rounding.

    That holds for `keras.optimizers.Adam` (without `amsgrad`), `AdamW` and `SGD` and for those of per_variable.py, also
    inside a `LossScaleOptimizer` or a `MultiOptimizer`. Any other class, subclasses among them, stays as it is, and so
    does the update of a weight that is not float32 or whose gradient is sparse.

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
        vars(optimizer)[name] = types.MethodType(method, optimizer)  # past Keras's tracking


def _clip_gradients(self, gradients):
    """In place of the method of that name: the global norm takes one pass over each gradient that stores nothing."""
    import tensorflow as tf

    is_plain = all(isinstance(gradient, tf.Tensor) and gradient.dtype == tf.float32 for gradient in gradients)
    if is_plain and self.global_clipnorm:
        return tf.clip_by_global_norm(gradients, self.global_clipnorm)[0]
    return type(self)._clip_gradients(self, gradients)


def _leave_to_the_update(self, variables):
    """In place of `_apply_weight_decay`, which Keras calls right before the update: that decays each weight first."""


def _update_weights(self, distribution, grads_and_vars, learning_rate):
    """In place of `_distributed_tf_update_step`."""
    updates = {}  # of this step, by device and dtype

    def update(variable, gradient, learning_rate):
        where = variable.device, variable.dtype
        if where not in updates:
            updates[where] = _UPDATES[type(self)](self, learning_rate, variable.dtype)
        updates[where](variable, gradient)

    for gradient, variable in grads_and_vars:
        distribution.extended.update(variable, update, args=(gradient, learning_rate), group=False)


class _Update:
    """The updates of one step on one device; what is the same for all weights is computed once.

    Args:
        optimizer: a built optimizer.
        learning_rate: scalar.
        dtype: of the weights.
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
        """Returns the learning rate of a weight and the share of it that decays, None for none."""
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
