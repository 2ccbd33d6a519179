"""SGD and AdamW whose weight decay and learning rate depend on the variable, also after `load_model`.

Keras 3.15 can leave variables out of the decay, but does not save which: a reloaded model would decay its biases, norms
and positions. Layer-wise learning rates it does not have at all; scaled gradients are none, for Adam divides the scale
out again. Delete this file when Keras saves exclusions and has learning rates per variable; tests/compat/
test_per_variable.py watches for it.
"""

import keras
from keras import ops


class _PerVariable:
    """Mixin of a Keras optimizer: its step has a rate of its own for each variable, its decay is for kernels alone.

    The step of a variable is `LR(t) * factor` long, for which no more is assumed of the optimizer than that
    `update_step` takes the learning rate, and decay is decoupled: `LR(t) * factor * weight_decay * kernel`. Both happen
    where the variable is updated, so that replicas and microbatches change nothing.

    Args:
        rate_factors: one number per trainable variable, in their order; None for 1 everywhere.
        **kwargs: of the optimizer.
    """

    def __init__(self, *args, rate_factors=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.rate_factors = None if rate_factors is None else tuple(float(factor) for factor in rate_factors)

    def build(self, variables):
        if self.built:
            return
        if self.rate_factors is not None and len(self.rate_factors) != len(variables):
            raise ValueError(
                f"the optimizer has learning rates for {len(self.rate_factors)} trainable variables; "
                f"the model has {len(variables)}: compile it again after freezing or thawing layers"
            )
        super().build(variables)
        self._is_kernel = tuple(variable.name == "kernel" for variable in variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype)
        if self.rate_factors is not None:
            rate = rate * ops.cast(self.rate_factors[index], variable.dtype)
        if self.weight_decay and self._use_weight_decay(variable):
            self.assign_sub(variable, ops.multiply(variable, rate * ops.cast(self.weight_decay, variable.dtype)))
        super().update_step(gradient, variable, rate)

    def _apply_weight_decay(self, variables):
        """Nothing is left for Keras to decay: `update_step` does."""

    def _use_weight_decay(self, variable):
        return self._is_kernel[self._get_variable_index(variable)]

    def get_config(self):
        return {**super().get_config(), "rate_factors": self.rate_factors and list(self.rate_factors)}


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_PerVariable, keras.optimizers.SGD):
    """`keras.optimizers.SGD` with decay of kernels alone and a learning rate per variable."""


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_PerVariable, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with decay of kernels alone and a learning rate per variable."""
