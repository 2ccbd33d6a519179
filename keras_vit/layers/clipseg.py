"""The layers of the decoder of CLIPSeg (arXiv 2112.10003): FiLM, a post-norm block and the head for masks."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.perceptron import Perceptron
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.typing import Size, Tensor

_REFINED_STEPS = (4, 4)  # strides of the transposed convolutions of the refined head


@keras.saving.register_keras_serializable(package="keras_vit")
class FiLM(Layer):
    """Return mul(condition) * tokens + add(condition), with two dense layers (FiLM, arXiv 1709.07871).

    Shapes:
        tokens (batch, tokens, dim) and the condition (batch, width) -> the tokens
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure()

    def build(self, tokens_shape, condition_shape):
        self.mul, self.add = (self.dense(tokens_shape[-1], name, shape=condition_shape) for name in ("mul", "add"))

    def call(self, tokens: Tensor, condition: Tensor) -> Tensor:
        return self.mul(condition)[:, None] * tokens + self.add(condition)[:, None]

    def compute_output_shape(self, tokens_shape, condition_shape):
        return tokens_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class PostNormBlock(Layer):
    """Apply self-attention and an MLP with ReLU, each followed by its residual sum and a layer norm (arXiv 1706.03762).

    Args:
        num_heads: attention heads; they must divide the width of the input.
        mlp_dim: width of the hidden layer of the MLP.
        epsilon: epsilon of the norms.

    Shapes:
        (batch, tokens, dim) -> the same

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width.
    """

    def __init__(self, num_heads: int, mlp_dim: int, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, mlp_dim=mlp_dim, epsilon=epsilon)

    def build(self, input_shape):
        self.attention = self.sublayer(MultiHeadSelfAttention, self.num_heads, name="attention", shape=input_shape)
        self.norm1, self.norm2 = (self.make_norm("layer", self.epsilon, name) for name in ("norm1", "norm2"))
        self.mlp = self.sublayer(Perceptron, (self.mlp_dim, input_shape[-1]), name="mlp")
        build_in_sequence(input_shape, self.norm1, self.mlp, self.norm2)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        tokens = self.norm1(tokens + self.attention(tokens, training=training))
        return self.norm2(tokens + self.mlp(tokens))


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskHead(Layer):
    """Enlarge a map of patches to one logit per pixel.

    A transposed convolution whose kernel and stride are a patch does it. The refined head has a 3 x 3 convolution
    before, ReLU, and two transposed convolutions with stride 4, of which the first halves the channels, with ReLU
    between them.

    Args:
        patch_size: height and width of a patch in pixels, or one integer for both.
        refined: whether the head is the refined one, which needs patches of 16 pixels.

    Shapes:
        (batch, rows, columns, dim) -> (batch, rows * patch height, columns * patch width)

    Raises:
        ValueError: if a value is out of range, or `refined` with other patches.
    """

    def __init__(self, patch_size: Size = 16, refined: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(patch_size=patch_size, refined=refined)
        if self.refined and tuple(self.patch_size) != (16, 16):
            raise ValueError(f"refined needs patch_size=16; got refined=True and patch_size={self.patch_size}")

    def build(self, input_shape):
        dim = input_shape[-1]
        if self.refined:
            conv = self.conv(dim, 3, "conv", "glorot_uniform", padding="same")
            ups = [(max(dim // 2, 1), _REFINED_STEPS[0], "up1"), (1, _REFINED_STEPS[1], "up2")]
        else:
            conv, ups = None, [(1, self.patch_size, "up")]
        enlarge = [
            self.sublayer(keras.layers.Conv2DTranspose, filters, step, step, data_format="channels_last", name=name)
            for filters, step, name in ups
        ]
        self.steps = [conv, *enlarge] if self.refined else enlarge
        build_in_sequence(input_shape, *self.steps)

    def call(self, maps: Tensor) -> Tensor:
        for step in self.steps[:-1]:
            maps = ops.relu(step(maps))
        return ops.squeeze(self.steps[-1](maps), axis=-1)

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        return (batch, *(side and side * step for side, step in zip(sides, self.patch_size, strict=True)))
