"""Perceptron and TakeTokens: heads on some tokens of a sequence."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config.base import one_of, optional
from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.forms import gelu
from keras_vit.typing import Tensor

ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": ops.relu,
    "gelu": lambda x: gelu(x, False),
    "sigmoid": ops.sigmoid,
    "silu": ops.silu,
}


def _check_index(name, value):
    return checks.check_integer(name, value, minimum=-(2**20))


@keras.saving.register_keras_serializable(package="keras_vit")
class Perceptron(Layer):
    """Apply dense layers, named `dense_1` and so on, with an activation between them.

    Args:
        widths: widths of the outputs of the layers.
        last: activation of the last layer: `linear`, `sigmoid`, `relu`, `gelu` (exact) or `silu`.
        hidden: activation of the others.

    Shapes:
        (..., dim) -> (..., the last width)

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    own_checks = {
        "widths": checks.check_integers,
        "last": one_of(tuple(ACTIVATIONS)),
        "hidden": one_of(tuple(ACTIVATIONS)),
    }

    def __init__(self, widths: Sequence[int], last: str = "linear", hidden: str = "relu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(widths=widths, last=last, hidden=hidden)
        self.dense_layers = [self.dense(width, f"dense_{number}") for number, width in enumerate(self.widths, start=1)]

    def build(self, input_shape):
        build_in_sequence(input_shape, *self.dense_layers)

    def call(self, x: Tensor) -> Tensor:
        for layer in self.dense_layers[:-1]:
            x = ACTIVATIONS[self.hidden](layer(x))
        return ACTIVATIONS[self.last](self.dense_layers[-1](x))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.widths[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class TakeTokens(Layer):
    """Return the first tokens of a sequence, or the last ones.

    Args:
        start: index of the first token, counted from the end if it is negative.
        stop: index after the last token; None for the end.

    Shapes:
        (batch, tokens, dim) -> (batch, fewer tokens, dim)
    """

    own_checks = {"start": _check_index, "stop": optional(_check_index)}

    def __init__(self, start: int = 0, stop: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(start=start, stop=stop)

    def call(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.start : self.stop]

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        count = len(range(tokens)[self.start : self.stop]) if tokens else abs(self.stop or self.start)
        return (batch, count, dim)
