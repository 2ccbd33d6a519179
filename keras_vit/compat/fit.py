"""DistributedFit: fit, evaluate and predict with the same results on several replicas as on one device.

tensorflow_fit.py and jax_fit.py correct the faults in the `fit` of each backend and split batches into microbatches.
This file checks arguments and makes it possible to start inside an epoch. Keep it even when
tests/compat/test_optimizers.py shows that `keras.Model` trains correctly on several replicas.
"""

import contextvars
import inspect
from typing import Any

import keras

from keras_vit import checks
from keras_vit.compat.batch_parts import BackendFit, check_parts
from keras_vit.compat.jax_fit import JaxFit
from keras_vit.compat.labels import check_labels, label_rules, labels_in_words
from keras_vit.compat.private_names import check_installed

if keras.backend.backend() == "tensorflow":
    from keras_vit.compat.tensorflow_fit import TensorFlowFit

    _OwnFit: Any = TensorFlowFit
else:
    _OwnFit = JaxFit if keras.backend.backend() == "jax" else BackendFit

# method -> its data arguments, each with the argument that limits its steps, as Keras could run more, and its function
_STEPS_OF = {
    "fit": {
        "x": ("steps_per_epoch", "train_function"),
        "validation_data": ("validation_steps", "test_function"),
    },
    "evaluate": {"x": ("steps", "test_function")},
    "predict": {"x": ("steps", "predict_function")},
}
_trained: Any = contextvars.ContextVar("trained", default=None)  # the model of the train_step that runs in this thread
_ENDLESS = -1  # tf.data.INFINITE_CARDINALITY
# class -> attributes that change during training: a number, a list of arrays, or None
CALLBACK_STATE = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
}


class DistributedFit(_OwnFit):
    """Correct `fit` for several devices; a mixin for `keras.Model`.

    It must precede `keras.Model` among the base classes."""

    _microbatches = 1
    _steps_done = None  # number of steps to skip in the epoch that `fit` starts next

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
            ImportError: if the installed Keras lacks a private name without which training could be wrong.
            ValueError: if `microbatches` is below 1, or above 1 on a backend other than TensorFlow and JAX or for a
                class with its own `train_step`; under a strategy of tf.distribute, if `jit_compile` is True; under
                several replicas, if the class has its own `compute_loss`. With microbatches or several replicas, `fit`
                raises it if the loss cannot be computed in parts: if the losses of several outputs have different
                reductions, if outputs are masked, or, with microbatches, if the loss is a sum and layers add losses.
        """
        check_installed(self._replicas, self, *self.layers)
        checks.check_integer("microbatches", microbatches)
        if microbatches > 1 and not self._can_split:
            raise ValueError(f"microbatches needs TensorFlow or JAX; got {microbatches} on {keras.backend.backend()}")
        if microbatches > 1 and type(self).train_step is not DistributedFit.train_step:
            raise ValueError(
                f"microbatches must be 1 for a model with its own train_step, which does not split batches; got "
                f"microbatches={microbatches} for {type(self).__name__}"
            )
        given = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
        del given["self"]
        self._check_losses(given.get("loss"), [given.get(name) for name in ("metrics", "weighted_metrics")])
        super().compile(**given)
        self._microbatches = microbatches

    def _check_losses(self, loss, metrics):
        """Check the losses and metrics that `compile` gets; for a subclass."""

    def train_step(self, *arguments):
        token = _trained.set(self)
        try:
            return super().train_step(*arguments)
        finally:
            _trained.reset(token)

    @property
    def _in_train_step(self) -> bool:
        """Return whether the `train_step` that runs is this model's, not that of a model that contains it."""
        return _trained.get() is self

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if training and (self._microbatches > 1 or self._replicas > 1):
            check_parts(self, y_pred, self._microbatches)
        if not getattr(self.loss, "needs_all_outputs", False):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        if self._microbatches > 1:
            got = f"microbatches={self._microbatches} with {type(self.loss).__name__}"
            raise ValueError(f"microbatches must be 1 for a loss that is a mean over the objects of a batch; got {got}")
        weights = keras.tree.flatten(sample_weight)  # Keras repeats those of arrays for each target
        added = [keras.ops.sum(loss) / self._replicas for loss in self.losses]
        return sum(added, self.loss(y, y_pred, weights[0]))  # Keras would compare each output alone

    def get_compile_config(self):
        config = super().get_compile_config()
        # Without microbatches, a `keras.Model` that `keras.models.clone_model` makes of this model can have the config.
        return {**config, "microbatches": self._microbatches} if config and self._microbatches > 1 else config

    def compile_from_config(self, config):
        config = keras.saving.deserialize_keras_object(dict(config))
        self.compile(**self._portable(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(self, *args, **kwargs):
        """Train the model as `keras.Model.fit` does.

        A callback with a method `run_fit` controls the call: `run_fit(model, fit, arguments)` gets the named arguments
        as a dict, and returns the result of `fit(arguments, steps_done)`. The first epoch then starts after its first
        `steps_done` steps, without reading data for them; `keras.Model.fit` starts every epoch at step 0. Step numbers,
        progress bar and epochs are those of an uninterrupted run. Optimizer and metrics are built before the first
        callback is called. If the epoch has no steps left, the callbacks get its last step again, without training,
        with the metrics that were set in `on_epoch_begin`.

        Args:
            *args, **kwargs: as in `keras.Model.fit`.
        """
        arguments = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs).arguments
        del arguments["self"]
        for callback in keras.tree.flatten(arguments.get("callbacks")):
            if hasattr(callback, "run_fit"):
                return callback.run_fit(self, self._fit_inside, arguments)
        return self._fit_inside(arguments, None)

    def _fit_inside(self, arguments, steps_done):
        self._steps_done = steps_done
        try:
            with labels_in_words():
                return super().fit(**self._checked("fit", (), arguments))
        finally:
            self._steps_done = None

    def evaluate(self, *args, **kwargs):
        with labels_in_words():
            return super().evaluate(**self._checked("evaluate", args, kwargs))

    def predict(self, *args, **kwargs):
        return super().predict(**self._checked("predict", args, kwargs))

    def _symbolic_build(self, iterator=None, data_batch=None):
        check_installed(self._replicas, iterator, self.optimizer)
        super()._symbolic_build(iterator=iterator, data_batch=data_batch)
        if iterator is not None and self._steps_done is not None:
            _skip(self, iterator, self._steps_done)
            self._steps_done = None

    def _checked(self, method, args, kwargs):
        """Return the arguments of a method of `keras.Model` by name, with the data adapted to the strategy."""
        arguments = inspect.signature(getattr(keras.Model, method)).bind(self, *args, **kwargs).arguments
        arguments.pop("self")
        own = arguments.pop("kwargs", {})
        if own:  # passed by Keras when `fit` validates; these data are already adapted
            return {**arguments, **own}
        for name, (counted_by, function) in _STEPS_OF[method].items():
            steps = arguments.get(counted_by)
            if steps and steps % self.steps_per_execution:
                raise ValueError(f"steps_per_execution={self.steps_per_execution} must divide {counted_by}={steps}")
            if arguments.get(name) is not None:
                if steps is None:
                    _check_end(method, name, counted_by, arguments[name])
                data = arguments[name] if name == "validation_data" else (None, arguments.get("y"))
                check_labels(label_rules(self), data[1] if isinstance(data, (tuple, list)) else None)
                self._looks.pop(function, None)
                self._look_at(method, arguments[name], function)
                arguments[name] = self._shared_out(arguments[name], function)
        return arguments

    def _look_at(self, method, data, function):
        """Inspect data, images or a tuple that starts with them, now or in `_looks[function]`; for a subclass."""


def _check_end(method, name, counted_by, data):
    """Raise an error for infinite data without a number of steps; Keras would never finish."""
    cardinality = getattr(data, "cardinality", None)  # a method in tf.data, a number in tf.distribute
    cardinality = cardinality() if callable(cardinality) else cardinality
    if isinstance(data, keras.utils.PyDataset) and data.num_batches is None:
        cardinality = _ENDLESS
    if cardinality is None or int(cardinality) != _ENDLESS:
        return
    steps = getattr(data, "steps_per_epoch", None)
    known = "the number of images divided by the batch size" if steps is None else f"{steps} steps are one pass"
    raise ValueError(
        f"{counted_by} must be given to {method}, as {name} is infinite (a cardinality of -1 or num_batches=None); got "
        f"{counted_by}=None ({known})"
    )


def _skip(model, iterator, steps_done):
    """Make the next epoch of an epoch iterator start after its first `steps_done` steps."""
    whole_epoch = iterator._enumerate_iterator

    def rest_of_epoch():
        iterator._enumerate_iterator = whole_epoch
        for step in whole_epoch():
            if step[0] >= steps_done:
                yield step
            else:
                iterator._steps_seen -= iterator.steps_per_execution  # no data was read for this step
        if steps_done >= iterator.steps_per_epoch:
            _train_nothing_once(model)
            yield step  # Keras's loop on JAX fails in an epoch without steps

    iterator._enumerate_iterator = rest_of_epoch


def _train_nothing_once(model):
    train_function, logs = model.train_function, model.get_metrics_result()

    def train_nothing(*arguments):
        model.train_function = train_function
        return logs if len(arguments) == 1 else (logs, arguments[0])  # TensorFlow: iterator; JAX: state, iterator

    model.train_function = train_nothing


def uncount_batch(callback):
    """Subtract the last batch from the counts of a `ModelCheckpoint`; other callbacks have none."""
    if getattr(callback, "_last_batch_seen", None) is not None:
        callback._batches_seen_since_last_saving -= 1
        callback._last_batch_seen -= 1


def has_workers(strategy):
    """Whether several processes train together under this `tf.distribute` strategy."""
    return strategy.extended._in_multi_worker_mode()
