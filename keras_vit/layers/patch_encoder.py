"""PatchEncoder and ClassToken: the tokens of an image, and the learned tokens before them."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer, known_map
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(Layer):
    """Split an image into patches and project each to a token.

    The tokens are x_p E of Eq. 1 in arXiv 2010.11929.

    The projection is a convolution with equal kernel and stride; its kernel has the official layout (height, width,
    channels, hidden_dim). Tokens are in raster order, row by row.

    Args:
        patch_size: height and width of a patch in pixels, or one integer for both.
        hidden_dim: width D of the tokens.
        use_bias: whether the projection has a bias.

    Shapes:
        (batch, height, width, channels) -> (batch, height / patch height * width / patch width, hidden_dim)

    Raises:
        ValueError: if a value is out of range; at build, if the image size is unknown or not divisible by the patch
            size.
    """

    def __init__(self, patch_size: Size, hidden_dim: int, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(patch_size=patch_size, hidden_dim=hidden_dim, use_bias=use_bias)
        strides = {"strides": self.patch_size, "use_bias": use_bias}
        self.projection = self.conv(self.hidden_dim, self.patch_size, "projection", "lecun_normal", **strides)

    def build(self, input_shape):
        self.grid_size(input_shape)
        self.projection.build(input_shape)

    def call(self, images: Tensor) -> Tensor:
        rows, columns = self.grid_size(images.shape)
        patches = self.projection(images)  # (batch, rows, columns, hidden_dim)
        return ops.reshape(patches, (-1, rows * columns, self.hidden_dim))

    def grid_size(self, input_shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the (rows, columns) of the patch grid.

        Args:
            input_shape: shape of the images, (batch, height, width, channels).

        Raises:
            ValueError: if height or width is unknown or not divisible by the patch size.
        """
        size = known_map(self, input_shape)[:2]
        checks.check_divisible("image_size", size, "patch_size", self.patch_size)
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    def compute_output_shape(self, input_shape):
        rows, columns = self.grid_size(input_shape)
        return (input_shape[0], rows * columns, self.hidden_dim)


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
        # adding zeros broadcasts to the batch; LiteRT may lose a batch size that is computed at run time
        nothing = ops.zeros_like(tokens[:, :1])
        return ops.concatenate([*(nothing + ops.cast(token, tokens.dtype) for token in learned), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        added = self.num_class_tokens + self.num_registers
        return (batch, None if tokens is None else tokens + added, dim)
