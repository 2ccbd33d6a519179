"""Layer, the base class of the package's layers, and helpers that several layers share."""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from keras_vit.config import BlockConfig
from keras_vit.config.base import Check, Config, check_of
from keras_vit.layers.forms import LayerNorm, absent


class Layer(keras.layers.Layer):
    """Check and store the arguments of a layer, and state all of them in its config.

    The constructor of a layer calls `super().__init__(**kwargs)`, then `self.configure` with each of its own arguments.

    The output has the shape of the first input, unless a layer defines `compute_output_shape` or
    `compute_output_spec`.

    Attributes:
        own_checks: checks of arguments that are not in `keras_vit.config.base.ARGUMENTS` or have another meaning
            in this layer.
        argument_names: names of the arguments given to `configure`.

    Shapes:
        as each layer states
    """

    own_checks: ClassVar[Mapping[str, Check]] = {}
    argument_names: tuple[str, ...] = ()

    def configure(self, **arguments: Any) -> None:
        """Check arguments of the constructor by their names and store them as attributes.

        What is stored is what the checks return; that of `block` returns the default `BlockConfig` for None.

        Args:
            **arguments: the arguments by name; a layer may call this several times.

        Raises:
            ValueError: if a value is out of range or a choice is unknown.
            TypeError: if an argument has no check.
        """
        for name, value in arguments.items():
            setattr(self, name, check_of(type(self), name)(name, value))
        self.argument_names = (*self.argument_names, *arguments)

    def get_config(self):
        values = {name: getattr(self, name) for name in self.argument_names}
        for name, value in values.items():
            if isinstance(value, Config):
                values[name] = None if value == BlockConfig() else value.to_dict()  # the default is None
        return {**super().get_config(), **values}

    def compute_output_shape(self, input_shape):
        return input_shape

    def sublayer(self, layer_class: Any, *args: Any, shape: Any = None, **kwargs: Any) -> Any:
        """Return a new layer with the dtype policy of this layer.

        Args:
            layer_class: class of the new layer.
            *args: its positional arguments.
            shape: shape to build it for; None leaves it unbuilt.
            **kwargs: its keyword arguments.
        """
        layer = layer_class(*args, dtype=self.dtype_policy, **kwargs)
        if shape is not None:
            layer.build(shape)
        return layer

    def dense(
        self, units: int, name: str, initializer: Any = "glorot_uniform", shape: Any = None, **kwargs: Any
    ) -> keras.layers.Dense:
        """Return a dense layer with the dtype policy of this layer.

        Args:
            units: width of the output.
            name: name of the layer.
            initializer: initializer of the kernel.
            shape: shape to build it for; None leaves it unbuilt.
            **kwargs: other arguments of `keras.layers.Dense`.
        """
        return self.sublayer(
            keras.layers.Dense, units, kernel_initializer=initializer, name=name, shape=shape, **kwargs
        )

    def make_norm(self, kind: str, epsilon: float, name: str, shape: Any = None) -> keras.layers.Layer:
        """Return a norm with the dtype policy of this layer.

        Args:
            kind: `layer` or `rms`.
            epsilon: added to the variance, or to the mean square.
            name: name of the layer.
            shape: shape to build it for; None leaves it unbuilt.
        """
        return self.sublayer(NORM_LAYERS[kind], epsilon=epsilon, name=name, shape=shape)

    def conv(self, filters: int, kernel_size: Any, name: str, initializer: Any, **kwargs: Any) -> keras.layers.Conv2D:
        """Return an unbuilt convolution with the dtype policy of this layer.

        The layer works on maps (batch, rows, columns, channels).

        Args:
            filters: number of output channels.
            kernel_size: height and width of the kernel, or one integer for both.
            name: name of the layer.
            initializer: initializer of the kernel.
            **kwargs: other arguments of `keras.layers.Conv2D`.
        """
        kwargs = {"kernel_initializer": initializer, "data_format": "channels_last", "name": name, **kwargs}
        return self.sublayer(keras.layers.Conv2D, filters, kernel_size, **kwargs)

    def normal_weight(self, name: str, shape: tuple[int, ...], stddev: float = 0.02) -> keras.Variable:
        """Return a new weight with initial values from N(0, stddev).

        Args:
            name: name of the weight.
            shape: its shape.
            stddev: standard deviation of its initial values.
        """
        initializer = keras.initializers.RandomNormal(stddev=stddev)
        return self.add_weight(name=name, shape=shape, initializer=initializer)


# kind of a norm, `norm` of `BlockConfig` -> its layer
NORM_LAYERS = {"layer": LayerNorm, "rms": keras.layers.RMSNormalization}


def build_in_sequence(shape, *layers):
    """Build each layer that is not `absent` for the output of the previous one; return the shape of the last output."""
    for layer in layers:
        if layer is not absent:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
    return shape


def known_map(layer, shape, sides=True):
    """Return the rows, columns and channels of a map of shape (batch, rows, columns, channels).

    Args:
        layer: the layer that takes the map.
        shape: its shape.
        sides: whether rows and columns must be known.

    Raises:
        ValueError: if it has another rank or an unknown size.
    """
    if len(shape) != 4 or None in shape[1 if sides else 3 :]:
        raise ValueError(
            f"{type(layer).__name__} needs images or maps of shape (batch, rows, columns, channels) with known "
            f"size; got {tuple(shape)}"
        )
    return shape[1:]


def head_width(num_heads, dim):
    """Return the number of channels of each head.

    Raises:
        ValueError: if the heads do not divide the width of the input.
    """
    if dim % num_heads:
        raise ValueError(f"num_heads must divide the width of the input; got {num_heads} and {dim}")
    return dim // num_heads
