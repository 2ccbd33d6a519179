"""DistributedFit: fit, evaluate and predict with the same results on several replicas as on one device.

The corrections are in tensorflow_fit.py, optimizers.py, replica_seeds.py and label_errors.py. This file also adds the
option `microbatches`, which is the only part to keep when tests/compat/test_optimizers.py finds that `keras.Model`
trains correctly.
"""

import contextvars
import inspect
from typing import Any

import keras

from keras_vit import checks
from keras_vit.compat.backend_fit import BackendFit
from keras_vit.compat.jax_fit import JaxFit
from keras_vit.compat.label_errors import labels_in_words
from keras_vit.compat.loss_shares import check_parts
from keras_vit.compat.tensorflow_fit import TensorFlowFit

# method -> its data arguments, each with the argument that counts the steps, which Keras would exceed
_STEPS_OF = {
    "fit": {"x": "steps_per_epoch", "validation_data": "validation_steps"},
    "evaluate": {"x": "steps"},
    "predict": {"x": "steps"},
}
_trained: Any = contextvars.ContextVar("trained", default=None)  # the model of the train_step that runs in this thread
_ENDLESS = -1  # tf.data.INFINITE_CARDINALITY
_OwnFit: Any = {"tensorflow": TensorFlowFit, "jax": JaxFit}.get(keras.backend.backend(), BackendFit)


class DistributedFit(_OwnFit):
    """Mixin for `keras.Model`; it must precede `keras.Model` among the base classes."""

    _microbatches = 1

    def compile(self, *args: Any, microbatches: int = 1, **kwargs: Any) -> None:
        """Configure the model for training as `keras.Model.compile` does.

        A compiled model is saved with its `microbatches`.

        Args:
            *args: as in `keras.Model.compile`.
            microbatches: number of parts that each training step splits a batch into, to save memory; at most one part
                per row. The gradient is that of the whole batch, also for parts of unequal size, and is applied once;
                `steps` and schedules count batches. Layers that depend on the other images of a batch
                (BatchNormalization) use those of the part. Losses that layers add as a sum over the batch (`add_loss`,
                activity regularisers) are averaged over the parts, as over replicas. On TensorFlow the parts run one
                after another; XLA (`jit_compile`) may change this order, so it may not save memory.
            **kwargs: as in `keras.Model.compile`. `steps_per_execution` must divide `steps_per_epoch`, if given; if the
                data end early, the last execution is shorter.

        Raises:
            ValueError: if `microbatches` is below 1, or above 1 on a backend other than TensorFlow and JAX or for a
                class with its own `train_step`; under a strategy of tf.distribute, if `jit_compile` is True; under
                several replicas, if the class has its own `compute_loss`. With microbatches or several replicas, `fit`
                raises it for losses that cannot be combined from parts: different reductions of several outputs, masked
                outputs, and with microbatches a sum together with losses that layers add.
        """
        checks.check_integer("microbatches", microbatches)
        if microbatches > 1 and not self._can_split:
            raise ValueError(
                f"microbatches needs the TensorFlow or the JAX backend; got microbatches={microbatches} on "
                f"{keras.backend.backend()}"
            )
        if microbatches > 1 and type(self).train_step is not DistributedFit.train_step:
            raise ValueError(
                f"microbatches must be 1 for a model with its own train_step, which does not split batches; got "
                f"microbatches={microbatches} for {type(self).__name__}"
            )
        self._before_compile(args, kwargs)
        super().compile(*args, **kwargs)
        self._microbatches = microbatches
        self._after_compile()

    def train_step(self, *arguments):
        token = _trained.set(self)
        try:
            return super().train_step(*arguments)
        finally:
            _trained.reset(token)

    @property
    def _in_train_step(self) -> bool:
        """Return whether the model's own `train_step` runs, not that of a model around it."""
        return _trained.get() is self

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if training and (self._microbatches > 1 or self._replicas > 1):
            check_parts(self, y_pred, self._microbatches)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def get_compile_config(self):
        config = super().get_compile_config()
        return {**config, "microbatches": self._microbatches} if config else config

    def compile_from_config(self, config):
        config = keras.saving.deserialize_keras_object(dict(config))
        self.compile(**self._portable(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, *args, **kwargs):
        with labels_in_words():
            return super().fit(**self._checked("fit", args, kwargs))

    def evaluate(self, *args, **kwargs):
        with labels_in_words():
            return super().evaluate(**self._checked("evaluate", args, kwargs))

    def predict(self, *args, **kwargs):
        return super().predict(**self._checked("predict", args, kwargs))

    def _checked(self, method, args, kwargs):
        """Return the arguments of a method of `keras.Model` by name, with the data adapted to the strategy."""
        arguments = inspect.signature(getattr(keras.Model, method)).bind(self, *args, **kwargs).arguments
        arguments.pop("self")
        arguments.update(arguments.pop("kwargs", {}))
        for name, counted_by in _STEPS_OF[method].items():
            steps = arguments.get(counted_by)
            if steps and steps % self.steps_per_execution:
                raise ValueError(
                    f"{counted_by} must be divisible by steps_per_execution; got {counted_by}={steps}, "
                    f"steps_per_execution={self.steps_per_execution}"
                )
            if name in arguments:
                if steps is None:
                    _check_end(method, name, counted_by, arguments[name])
                arguments[name] = self._shared_out(arguments[name])
        return arguments


def _check_end(method, name, counted_by, data):
    """Raise an error for infinite data without a number of steps, for which Keras would never finish."""
    cardinality = getattr(data, "cardinality", None)  # a method in tf.data, a number in tf.distribute
    cardinality = cardinality() if callable(cardinality) else cardinality
    if cardinality is None or int(cardinality) != _ENDLESS:
        return
    steps = getattr(data, "steps_per_epoch", None)
    known = "the number of images divided by the batch size" if steps is None else f"{steps} are one pass"
    raise ValueError(
        f"{counted_by} must be given to {method}, as {name} is an infinite dataset (tf.data.INFINITE_CARDINALITY); "
        f"got {counted_by}=None ({known})"
    )
