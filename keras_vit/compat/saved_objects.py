"""Losses, metrics, optimizers and schedules that Keras lacks; a compiled model is saved with them.

Delete a class when Keras has an equivalent one; test_losses.py, test_per_variable.py and test_warmup.py in tests/compat
check for it.
"""

import numbers

import keras
from keras import ops

CROSS_ENTROPIES = ("softmax", "sigmoid")


@keras.saving.register_keras_serializable(package="keras_vit")
class CrossEntropy(keras.losses.Loss):
    """Softmax or sigmoid cross-entropy, one number per example.

    The same loss accepts mixed labels (batch, classes), as in training, and integer labels (batch,), as in validation.
    Keras has separate classes for the two, no sigmoid cross-entropy that is summed over the classes, and no
    label smoothing for integer labels.

    Args:
        kind: `softmax`, one class per image, or `sigmoid`, independent classes, summed over the classes.
        from_logits: whether predictions are logits; False for probabilities.
        label_smoothing: e in [0, 1); targets become (1 - e) * target + e / classes.
        **kwargs: arguments of `keras.losses.Loss`: `reduction`, `name`, `dtype`.

    Shapes:
        predictions (..., classes); labels: integer classes (...) or (..., 1), or one target in [0, 1] per class (...,
        classes), which sum to 1 for `softmax` -> (...) before the reduction. With one class, labels (..., 1) are
        targets.
    """

    def __init__(self, kind="softmax", from_logits=True, label_smoothing=0.0, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.from_logits = from_logits
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        classes = y_pred.shape[-1]
        targets = y_true if _has_target_per_class(y_true, y_pred) else ops.one_hot(_indices(y_true, y_pred), classes)
        targets = ops.cast(targets, y_pred.dtype)
        if self.label_smoothing:
            targets = (1.0 - self.label_smoothing) * targets + self.label_smoothing / classes
        if self.kind == "softmax":
            return ops.categorical_crossentropy(targets, y_pred, from_logits=self.from_logits)
        return ops.sum(ops.binary_crossentropy(targets, y_pred, from_logits=self.from_logits), axis=-1)

    def get_config(self):
        own = {"kind": self.kind, "from_logits": self.from_logits, "label_smoothing": self.label_smoothing}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_vit")
class Accuracy(keras.metrics.Accuracy):
    """Share of the examples whose most likely class is correct.

    An integer label is the correct class. If the label has one target per class, every class with the highest target is
    correct: each true class of a multi-label image, or the class with the larger share of a mixed image.

    Shapes: as `CrossEntropy`.
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        return keras.metrics.Mean.update_state(self, _is_right(y_true, y_pred), sample_weight)


def _is_right(y_true, y_pred):
    answers = ops.argmax(y_pred, axis=-1)
    if not _has_target_per_class(y_true, y_pred):
        return ops.cast(ops.equal(ops.cast(answers, "int32"), _indices(y_true, y_pred)), "float32")
    of_answers = ops.take_along_axis(y_true, ops.expand_dims(answers, -1), axis=-1)
    return ops.cast(ops.squeeze(of_answers, -1) >= ops.max(y_true, axis=-1), "float32")


def _has_target_per_class(y_true, y_pred):
    # Decided by shape only, because Keras casts labels to floats before a loss gets them.
    return len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] in (y_pred.shape[-1], None)


def _indices(y_true, y_pred):
    return ops.reshape(ops.cast(y_true, "int32"), ops.shape(y_pred)[:-1])


class _PerVariable:
    """Mixin for a Keras optimizer: one learning rate factor per variable, and weight decay of kernels only.

    Keras can exclude variables from weight decay, but does not save the exclusion: a reloaded model would decay its
    biases, norms and positions. It has no layer-wise learning rates, and scaling gradients does not replace them,
    because Adam divides by the scale.

    The learning rate of a variable is `LR(t) * factor`. The weight decay is decoupled: `LR(t) * factor * weight_decay *
    kernel`; it may be a Keras schedule. Both act inside `update_step`, so replicas and microbatches do not change the
    result. The optimizer needs only an `update_step` that takes the learning rate.

    Args:
        rate_factors: one number per trainable variable, in their order; None means 1 for all.
        encoder_rate: Keras schedule that takes the place of the learning rate for some variables, or None.
        of_encoder: one bool per trainable variable, whether it follows `encoder_rate`; None without one.
        modules: one name per trainable variable; `global_clipnorm` then limits the norm of each module by itself, as in
            DINOv2. None has one norm.
        **kwargs: arguments of the optimizer.
    """

    def __init__(self, *args, rate_factors=None, encoder_rate=None, of_encoder=None, modules=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.rate_factors = None if rate_factors is None else tuple(float(factor) for factor in rate_factors)
        self.encoder_rate = encoder_rate
        self.of_encoder = None if of_encoder is None else tuple(map(bool, of_encoder))
        self.modules = None if modules is None else tuple(modules)

    def build(self, variables):
        if self.built:
            return
        counts = {len(given) for given in (self.rate_factors, self.of_encoder, self.modules) if given is not None}
        if counts - {len(variables)}:
            raise ValueError(
                f"the optimizer has learning rates or modules for {max(counts)} trainable variables; "
                f"the model has {len(variables)}: compile it again after freezing or unfreezing layers"
            )
        super().build(variables)
        self._is_kernel = tuple(variable.name == "kernel" for variable in variables)

    def update_step(self, gradient, variable, learning_rate):
        scheduled, factor = rate_of(self, self._get_variable_index(variable))
        rate = ops.cast(learning_rate if scheduled is None else scheduled, variable.dtype)
        rate = rate if factor == 1.0 else rate * ops.cast(factor, variable.dtype)
        if self.weight_decay and self._use_weight_decay(variable):
            self.assign_sub(variable, ops.multiply(variable, rate * ops.cast(weight_decay_of(self), variable.dtype)))
        super().update_step(gradient, variable, rate)

    def _clip_gradients(self, grads):
        if self.modules is None:
            return super()._clip_gradients(grads)
        return clip_by_module(grads, self.modules, self.global_clipnorm)

    def _apply_weight_decay(self, variables):
        """Do nothing, because `update_step` applies the weight decay."""

    def _use_weight_decay(self, variable):
        return self._is_kernel[self._get_variable_index(variable)]

    def get_config(self):
        own = {name: value and list(value) for name in ("rate_factors", "modules") for value in [getattr(self, name)]}
        if self.encoder_rate is not None:
            rate = keras.saving.serialize_keras_object(self.encoder_rate)
            own |= {"encoder_rate": rate, "of_encoder": list(self.of_encoder)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        schedules = {
            name: config[name] for name in ("weight_decay", "encoder_rate") if isinstance(config.get(name), dict)
        }
        read = {name: keras.saving.deserialize_keras_object(one, custom_objects) for name, one in schedules.items()}
        return super().from_config({**config, **read}, custom_objects)


def clip_by_module(gradients, modules, norm):
    """Clip the gradients of each module to a global norm of their own, as DINOv2 does for the backbone and each head.

    Args:
        gradients: one per variable.
        modules: for each gradient, the module that it belongs to, such as its name.
        norm: largest norm of a module.

    Returns:
        The gradients times min(1, norm / (norm of their module + 1e-6)), in the same order.
    """
    squares = {}
    for module, gradient in zip(modules, gradients, strict=True):
        squares[module] = squares.get(module, 0.0) + ops.sum(ops.square(ops.cast(gradient, "float32")))
    factors = {module: ops.minimum(1.0, norm / (ops.sqrt(square) + 1e-6)) for module, square in squares.items()}
    return [one * ops.cast(factors[module], one.dtype) for one, module in zip(gradients, modules, strict=True)]


def rate_of(optimizer, index):
    """Return the learning rate of a variable in place of the optimizer's, or None, and the factor of either."""
    factors, of_encoder = (getattr(optimizer, name, None) for name in ("rate_factors", "of_encoder"))
    scheduled = optimizer.encoder_rate(optimizer.variables[0]) if of_encoder and of_encoder[index] else None
    return scheduled, 1.0 if factors is None else factors[index]


def weight_decay_of(optimizer):
    """Return the weight decay of the current step; a schedule counts batches, as that of the learning rate does."""
    decay = optimizer.weight_decay
    return decay(optimizer.variables[0]) if callable(decay) else decay


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_PerVariable, keras.optimizers.SGD):
    """`keras.optimizers.SGD` with weight decay of kernels only and a learning rate per variable."""


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_PerVariable, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with weight decay of kernels only and a learning rate per variable."""


@keras.saving.register_keras_serializable(package="keras_vit")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Increase linearly from `start` to `peak`, then follow another schedule from its step 0.

        LR(t) = start + (peak - start) * t / warmup_steps    for t < warmup_steps
        LR(t) = after(t - warmup_steps)                      otherwise

    Args:
        start: learning rate of step 0.
        peak: learning rate at the end of the warm-up.
        warmup_steps: length of the warm-up in steps, at least 1.
        after: Keras schedule, or a number for a constant learning rate.
    """

    def __init__(self, start, peak, warmup_steps, after):
        super().__init__()
        self.start = start
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.after = after

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = self.start + (self.peak - self.start) * step / self.warmup_steps
        is_constant = isinstance(self.after, numbers.Real)
        after = self.after if is_constant else self.after(ops.maximum(step - self.warmup_steps, 0.0))
        return ops.where(step < self.warmup_steps, rising, after)

    def get_config(self):
        after = keras.saving.serialize_keras_object(self.after)
        return {"start": self.start, "peak": self.peak, "warmup_steps": self.warmup_steps, "after": after}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "after": keras.saving.deserialize_keras_object(config["after"])})


def learning_rate_at(optimizer):
    """Return a function from a step, counted from 0, to the learning rate of a compiled optimizer.

    `optimizer.learning_rate` uses the step that the optimizer has counted; during `fit` on JAX, the optimizer does not
    have that count. Without a schedule, the function returns the current rate for every step. For a
    `LossScaleOptimizer`, it returns the rate of the inner optimizer.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(optimizer.learning_rate, keras.Variable):
        rate = float(optimizer.learning_rate)
        return lambda step: rate

    def at(step):
        iterations = optimizer.variables[0]
        with keras.StatelessScope(state_mapping=[(iterations, ops.convert_to_tensor(step, iterations.dtype))]):
            return float(optimizer.learning_rate)

    return at
