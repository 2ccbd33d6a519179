"""ResNetStage: the residual units of one resolution, as one layer."""

from typing import Any

import keras

from keras_vit import checks
from keras_vit.layers.bottleneck import BottleneckUnit, PreActivationUnit
from keras_vit.typing import Tensor

_UNITS = {"post_norm": BottleneckUnit, "pre_activation": PreActivationUnit}


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetStage(keras.layers.Layer):
    """Apply residual units in sequence; the first may have a stride.

    The stages are those of arXiv 1512.03385, Table 1. The sub-layers are `unit_01`, `unit_02` and so on.

    Args:
        order: `post_norm` for units of the ViT hybrids (`BottleneckUnit`), `pre_activation` for units of BiT
            (`PreActivationUnit`).
        width: number of inner channels of the units, divisible by the 32 groups of GroupNorm; the output has 4 times as
            many.
        num_units: number of residual units.
        strides: stride of the first unit in both directions.
        gn_epsilon: epsilon of every GroupNorm.
        std_epsilon: epsilon of the weight standardisation.
        std_form: what `std_epsilon` is added to, `deviation` or `variance`; see `StdConv2D`.

    Shapes:
        (batch, height, width, channels) -> (batch, ceil(height / strides), ceil(width / strides), 4 * width)

    Raises:
        ValueError: if a value is out of range, a choice is unknown or the groups do not divide the width.
    """

    def __init__(
        self,
        order: str,
        width: int,
        num_units: int,
        strides: int,
        gn_epsilon: float,
        std_epsilon: float,
        std_form: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.order = checks.check_choice("order", order, tuple(_UNITS))
        self.num_units = checks.check_integer("num_units", num_units)
        self.units = [
            _UNITS[order](
                width,
                strides if index == 0 else 1,
                gn_epsilon,
                std_epsilon,
                std_form,
                dtype=self.dtype_policy,
                name=f"unit_{index + 1:02d}",
            )
            for index in range(num_units)
        ]

    def build(self, input_shape):
        for unit in self.units:
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)
        self.built = True

    def call(self, images: Tensor) -> Tensor:
        for unit in self.units:
            images = unit(images)
        return images

    def compute_output_shape(self, input_shape):
        return self.units[0].compute_output_shape(input_shape)

    def get_config(self):
        first = self.units[0]
        return {
            **super().get_config(),
            "order": self.order,
            "width": first.width,
            "num_units": self.num_units,
            "strides": first.strides,
            "gn_epsilon": first.gn_epsilon,
            "std_epsilon": first.std_epsilon,
            "std_form": first.std_form,
        }
