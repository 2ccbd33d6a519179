"""SGD and AdamW with weight decay and learning rate per variable, also after `load_model`.

Keras 3.15 can exclude variables from weight decay, but does not save which: a reloaded model would decay its biases,
norms and positions. It has no layer-wise learning rates, and scaling gradients does not replace them, because Adam
divides by the scale. Delete this file when Keras saves exclusions and has learning rates per variable;
tests/compat/test_per_variable.py checks for it.
"""

import keras
from keras import ops


class _PerVariable:
    """Mixin for a Keras optimizer: one learning rate factor per variable, and weight decay of kernels only.

    The learning rate of a variable is `LR(t) * factor`. The weight decay is decoupled: `LR(t) * factor * weight_decay *
    kernel`. Both act inside `update_step`, so replicas and microbatches do not change the result. The optimizer needs
    only an `update_step` that takes the learning rate.

    Args:
        rate_factors: one number per trainable variable, in their order; None means 1 for all.
        **kwargs: arguments of the optimizer.
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
                f"the model has {len(variables)}: compile it again after freezing or unfreezing layers"
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
        """Do nothing, because `update_step` applies the weight decay."""

    def _use_weight_decay(self, variable):
        return self._is_kernel[self._get_variable_index(variable)]

    def get_config(self):
        return {**super().get_config(), "rate_factors": self.rate_factors and list(self.rate_factors)}


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(_PerVariable, keras.optimizers.SGD):
    """`keras.optimizers.SGD` with weight decay of kernels only and a learning rate per variable."""


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(_PerVariable, keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with weight decay of kernels only and a learning rate per variable."""
