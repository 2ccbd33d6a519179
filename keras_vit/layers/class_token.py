"""ClassToken: prepends learned tokens to the patch tokens."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import Layer
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(Layer):
    """Prepend learned class tokens and register tokens to the patch tokens.

    The class token is x_class of Eq. 1 in arXiv 2010.11929; registers are those of arXiv 2309.16588. The order of the
    output is class tokens, registers, patch tokens. Class tokens start at zero, as in the official code. Registers
    start at N(0, 0.02), because equal registers would stay equal.

    Args:
        num_class_tokens: number of learned class tokens; 0 for a model that pools its patch tokens and only adds
            registers.
        num_registers: number of learned register tokens.

    Shapes:
        (batch, tokens, dim) -> (batch, num_class_tokens + num_registers + tokens, dim)

    Raises:
        ValueError: if both numbers are 0 or a value is out of range.
    """

    def __init__(self, num_class_tokens: int = 1, num_registers: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_class_tokens=num_class_tokens, num_registers=num_registers)
        if not self.num_class_tokens + self.num_registers:
            raise ValueError("num_class_tokens + num_registers must be at least 1; got 0 + 0")

    def build(self, input_shape):
        if self.num_class_tokens:
            shape = (1, self.num_class_tokens, input_shape[-1])
            self.class_token = self.add_weight(name="class_token", shape=shape, initializer="zeros")
        if self.num_registers:
            self.registers = self.normal_weight("registers", (1, self.num_registers, input_shape[-1]))

    def call(self, tokens: Tensor) -> Tensor:
        learned = [self.class_token] if self.num_class_tokens else []
        learned += [self.registers] if self.num_registers else []
        # zeros broadcast to the batch; LiteRT may lose a batch size that is computed at run time
        nothing = ops.zeros_like(tokens[:, :1])
        return ops.concatenate([*(nothing + ops.cast(token, tokens.dtype) for token in learned), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        added = self.num_class_tokens + self.num_registers
        return (batch, None if tokens is None else tokens + added, dim)
