"""Pooling layers: all tokens -> the features that the head reads."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config.base import optional
from keras_vit.layers.base import Layer, LayerNorm, head_width
from keras_vit.layers.self_attention import at_least_float32, softmax_at_least_float32
from keras_vit.layers.transformer_block import MlpBlock
from keras_vit.typing import Tensor


class _Pooling(Layer):
    """(batch, tokens, dim) -> (batch, dim)"""

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(_Pooling):
    """Select one token: the class token z_L^0 of Eq. 4 in arXiv 2010.11929.

    Args:
        index: index of the token, from 0.

    Shapes:
        (batch, tokens, dim) -> (batch, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, index: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(index=index)

    def call(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.index]


@keras.saving.register_keras_serializable(package="keras_vit")
class GlobalAveragePooling(_Pooling):
    """Average the patch tokens; the sum is in at least float32.

    Args:
        num_prefix_tokens: number of class and register tokens at the start of the sequence, which the mean leaves out.

    Shapes:
        (batch, tokens, dim), or without prefix tokens a map (batch, rows, columns, dim) -> (batch, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_prefix_tokens=num_prefix_tokens)

    def call(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.num_prefix_tokens :]
        axes = tuple(range(1, len(patches.shape) - 1))
        mean = ops.mean(ops.cast(patches, at_least_float32(patches.dtype)), axis=axes)
        return ops.cast(mean, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenAndAveragePooling(GlobalAveragePooling):
    """Pool tokens to the class token and the mean of the patch tokens.

    The linear heads of DINOv2 (arXiv 2304.07193) read this.

    Args:
        num_prefix_tokens: number of class and register tokens at the start of the sequence; the class token is first.

    Shapes:
        (batch, tokens, dim) -> (batch, 2 * dim). A list of n inputs, such as the outputs of the last n blocks ->
        (batch, (n + 1) * dim): the class token of each, then the mean of the last.

    Raises:
        ValueError: if a value is out of range.
    """

    def call(self, tokens: Tensor) -> Tensor:
        levels = tokens if isinstance(tokens, (list, tuple)) else [tokens]
        return ops.concatenate([*(level[:, 0] for level in levels), super().call(levels[-1])], axis=-1)

    def compute_output_shape(self, input_shape):
        levels = input_shape if isinstance(input_shape[0], (list, tuple)) else [input_shape]
        return (levels[-1][0], sum(level[2] for level in levels) + levels[-1][2])


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(_Pooling):
    """Pool tokens by attention with a learned query, then an MLP (arXiv 2106.04560).

    Without `mlp_dim` it is the pooling of AIMv2 (arXiv 2411.14402): no MLP follows, the learned query is used without
    a projection, and keys and values have no biases.

    Args:
        num_heads: attention heads; they must divide the width of the input.
        mlp_dim: width of the hidden layer of the MLP, or None.
        num_prefix_tokens: number of class and register tokens at the start of the sequence, which are left out.
        gelu: `tanh` (the official code), `erf` or `quick`.
        epsilon: epsilon of the layer norm before the MLP.

    Shapes:
        (batch, tokens, dim) -> (batch, dim)

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `num_heads` does not divide the
            width.
    """

    own_checks = {"mlp_dim": optional(checks.check_integer)}

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int | None,
        num_prefix_tokens: int = 0,
        gelu: str = "tanh",
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, num_prefix_tokens=num_prefix_tokens)
        self.configure(mlp_dim=mlp_dim, gelu=gelu, epsilon=epsilon)
        if self.mlp_dim is not None:
            self.norm = self.sublayer(LayerNorm, epsilon=self.epsilon, name="norm")
            self.mlp = self.sublayer(MlpBlock, self.mlp_dim, gelu=self.gelu, name="mlp")

    def build(self, input_shape):
        dim = input_shape[-1]
        head_width(self.num_heads, dim)
        probe_shape = (1, 1, dim)
        self.probe = self.add_weight(name="probe", shape=probe_shape, initializer="glorot_uniform")
        # Xavier-uniform on each (dim, dim) kernel; this equals LeCun-uniform on the fused (dim, 2 dim) kernel.
        has_mlp = self.mlp_dim is not None
        self.query = self.dense(dim, "query", shape=probe_shape) if has_mlp else None
        self.key_value = self.dense(2 * dim, "key_value", "lecun_uniform", input_shape, use_bias=has_mlp)
        self.proj = self.dense(dim, "proj", shape=probe_shape)
        if has_mlp:
            self.norm.build((input_shape[0], 1, dim))
            self.mlp.build((input_shape[0], 1, dim))

    def call(self, tokens: Tensor) -> Tensor:
        tokens = tokens[:, self.num_prefix_tokens :]
        _, length, dim = ops.shape(tokens)
        head_dim = dim // self.num_heads
        probe = ops.cast(self.probe, tokens.dtype)
        query = ops.reshape(probe if self.query is None else self.query(probe), (self.num_heads, head_dim))
        fused = ops.reshape(self.key_value(tokens), (-1, length, 2, self.num_heads, head_dim))
        key, value = fused[:, :, 0], fused[:, :, 1]  # (batch, length, heads, head_dim)
        logits = ops.einsum("hd,bkhd->bhk", query * (1.0 / math.sqrt(head_dim)), key)
        weights = ops.cast(softmax_at_least_float32(logits), value.dtype)
        pooled = ops.einsum("bhk,bkhd->bhd", weights, value)
        pooled = self.proj(ops.reshape(pooled, (-1, 1, dim)))
        if self.mlp_dim is not None:
            pooled = pooled + self.mlp(self.norm(pooled))
        return pooled[:, 0]
