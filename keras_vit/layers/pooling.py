"""Pooling layers: all tokens -> the features that the head reads."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config.base import Check, optional
from keras_vit.layers.attend import EXCLUDED, at_least_float32, softmax_at_least_float32
from keras_vit.layers.base import Layer, head_width
from keras_vit.layers.forms import LayerNorm
from keras_vit.layers.transformer_block import MlpBlock
from keras_vit.typing import Tensor


class _Pooling(Layer):
    """(batch, tokens, dim) -> (batch, dim), or (batch, images_per_sequence, dim) above one image"""

    images_per_sequence: int | None = None
    own_checks: ClassVar[Mapping[str, Check]] = {"images_per_sequence": optional(checks.check_integer)}

    @classmethod
    def of(cls, config: Any, index: int, **own: Any) -> Self:
        """Return the pooling of a model.

        Args:
            config: `ViTConfig` of the model.
            index: index of its head, and of the token that it reads; a distilled model has two.
            **own: further arguments of the layer.
        """
        return cls(**cls._arguments(config, index), **own)

    @staticmethod
    def _arguments(config, index):
        return {"num_prefix_tokens": config.num_prefix_tokens * (config.embedding.images_per_sequence or 1)}

    def compute_output_shape(self, tokens_shape, sequence_ids_shape=None):
        return (tokens_shape[0], *self._image_axis, tokens_shape[-1])

    @property
    def _image_axis(self):
        """Return the shape of the axis of the images of a sequence: () if there is only one."""
        return () if (self.images_per_sequence or 1) == 1 else (self.images_per_sequence,)

    def _per_image(self, pooled):
        """(batch, images, dim) -> the shape of the output"""
        return pooled if self._image_axis else pooled[:, 0]

    def _is_of_image(self, sequence_ids):
        """(batch, tokens) -> whether a patch belongs to each image, (batch, images, patches)"""
        if sequence_ids is None or self.images_per_sequence is None:
            count = self.images_per_sequence
            raise ValueError(f"images_per_sequence and sequence_ids belong together; got {count} and {sequence_ids}")
        numbers = np.arange(self.images_per_sequence, dtype="int32")[:, None]
        return ops.equal(sequence_ids[:, None, self.num_prefix_tokens :], numbers)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(_Pooling):
    """Select one token: the class token z_L^0 of Eq. 4 in arXiv 2010.11929.

    Args:
        index: index of the token, from 0.
        images_per_sequence: number of images in a sequence, see `keras_vit.resize`; None for one image.
        num_prefix_tokens: number of class and register tokens of each image, if there are several.

    Shapes:
        (batch, tokens, dim) -> (batch, dim), or (batch, images_per_sequence, dim) above one image. The optional input
        `sequence_ids` of the other poolings is not read.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(
        self, index: int = 0, images_per_sequence: int | None = None, num_prefix_tokens: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.configure(index=index, images_per_sequence=images_per_sequence, num_prefix_tokens=num_prefix_tokens)

    @staticmethod
    def _arguments(config, index):
        return {"index": index, "num_prefix_tokens": max(config.num_prefix_tokens, 1)}

    def call(self, tokens: Tensor, sequence_ids: Tensor = None) -> Tensor:
        if not self._image_axis:
            return tokens[:, self.index]
        return tokens[:, self.index : self.images_per_sequence * self.num_prefix_tokens : self.num_prefix_tokens]


@keras.saving.register_keras_serializable(package="keras_vit")
class GlobalAveragePooling(_Pooling):
    """Average the patch tokens; the sum is in at least float32.

    Args:
        num_prefix_tokens: number of class and register tokens at the start of the sequence, which the mean leaves out.
        images_per_sequence: number of images in a sequence, see `keras_vit.resize`; None for one image.

    Shapes:
        (batch, tokens, dim), or without prefix tokens a map (batch, rows, columns, dim) -> (batch, dim). With
        `images_per_sequence` and the input `sequence_ids`, (batch, tokens), the image of each token -> the mean per
        image, (batch, images_per_sequence, dim) above one image

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_prefix_tokens: int = 0, images_per_sequence: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_prefix_tokens=num_prefix_tokens, images_per_sequence=images_per_sequence)

    def call(self, tokens: Tensor, sequence_ids: Tensor = None) -> Tensor:
        patches = tokens[:, self.num_prefix_tokens :]
        patches = ops.cast(patches, at_least_float32(patches.dtype))
        if sequence_ids is None and not self._image_axis:
            mean = ops.mean(patches, axis=tuple(range(1, len(patches.shape) - 1)))
            return ops.cast(mean, self.compute_dtype)
        weights = ops.cast(self._is_of_image(sequence_ids), patches.dtype)
        counts = ops.maximum(ops.sum(weights, axis=2, keepdims=True), 1)  # an image may be absent
        return ops.cast(self._per_image(ops.matmul(weights, patches) / counts), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenAndAveragePooling(GlobalAveragePooling):
    """Pool tokens to the class token and the mean of the patch tokens.

    The linear heads of DINOv2 (arXiv 2304.07193) read this.

    Args:
        num_prefix_tokens: number of class and register tokens at the start of the sequence; the class token is first.
        images_per_sequence: number of images in a sequence, see `keras_vit.resize`; None for one image.

    Shapes:
        (batch, tokens, dim) -> (batch, 2 * dim). A list of n inputs, such as the outputs of the last n blocks ->
        (batch, (n + 1) * dim): the class token of each, then the mean of the last. With `images_per_sequence` as in
        `GlobalAveragePooling`.

    Raises:
        ValueError: if a value is out of range.
    """

    def call(self, tokens: Tensor, sequence_ids: Tensor = None) -> Tensor:
        levels = tokens if isinstance(tokens, (list, tuple)) else [tokens]
        count = self.images_per_sequence or 1
        step = max(self.num_prefix_tokens // count, 1)
        firsts = (self._per_image(level[:, : count * step : step]) for level in levels)
        return ops.concatenate([*firsts, super().call(levels[-1], sequence_ids)], axis=-1)

    def compute_output_shape(self, tokens_shape, sequence_ids_shape=None):
        levels = tokens_shape if isinstance(tokens_shape[0], (list, tuple)) else [tokens_shape]
        return (levels[-1][0], *self._image_axis, sum(level[2] for level in levels) + levels[-1][2])


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
        images_per_sequence: number of images in a sequence, see `keras_vit.resize`; None for one image.

    Shapes:
        (batch, tokens, dim) -> (batch, dim); with `images_per_sequence` as in `GlobalAveragePooling`

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `num_heads` does not divide the
            width.
    """

    own_checks = {**_Pooling.own_checks, "mlp_dim": optional(checks.check_integer)}

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int | None,
        num_prefix_tokens: int = 0,
        gelu: str = "tanh",
        epsilon: float = 1e-6,
        images_per_sequence: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, mlp_dim=mlp_dim, gelu=gelu, epsilon=epsilon)
        self.configure(num_prefix_tokens=num_prefix_tokens, images_per_sequence=images_per_sequence)
        if self.mlp_dim is not None:
            self.norm = self.sublayer(LayerNorm, epsilon=self.epsilon, name="norm")
            self.mlp = self.sublayer(MlpBlock, self.mlp_dim, gelu=self.gelu, name="mlp")

    @staticmethod
    def _arguments(config, index):
        head, prefix = config.head, _Pooling._arguments(config, index)["num_prefix_tokens"]
        return {
            "num_heads": head.map_heads or config.num_heads,
            "mlp_dim": None if config.pooling == "aim" else head.map_mlp_dim or config.mlp_dim,
            "num_prefix_tokens": 0 if head.map_prefix else prefix,
            "gelu": config.gelu,
            "epsilon": config.epsilon,
        }

    def build(self, tokens_shape, sequence_ids_shape=None):
        dim = tokens_shape[-1]
        head_width(self.num_heads, dim)
        probe_shape = (1, 1, dim)
        self.probe = self.add_weight(name="probe", shape=probe_shape, initializer="glorot_uniform")
        # Xavier-uniform on each (dim, dim) kernel; this equals LeCun-uniform on the fused (dim, 2 dim) kernel.
        has_mlp = self.mlp_dim is not None
        self.query = self.dense(dim, "query", shape=probe_shape) if has_mlp else None
        self.key_value = self.dense(2 * dim, "key_value", "lecun_uniform", tokens_shape, use_bias=has_mlp)
        self.proj = self.dense(dim, "proj", shape=probe_shape)
        if has_mlp:
            self.norm.build((tokens_shape[0], 1, dim))
            self.mlp.build((tokens_shape[0], 1, dim))

    def call(self, tokens: Tensor, sequence_ids: Tensor = None) -> Tensor:
        tokens = tokens[:, self.num_prefix_tokens :]
        _, length, dim = ops.shape(tokens)
        head_dim = dim // self.num_heads
        probe = ops.cast(self.probe, tokens.dtype)
        query = ops.reshape(probe if self.query is None else self.query(probe), (self.num_heads, head_dim))
        fused = ops.reshape(self.key_value(tokens), (-1, length, 2, self.num_heads, head_dim))
        key, value = fused[:, :, 0], fused[:, :, 1]  # (batch, length, heads, head_dim)
        logits = ops.einsum("hd,bkhd->bhk", query * (1.0 / math.sqrt(head_dim)), key)[:, None]
        if sequence_ids is not None or self._image_axis:
            is_read = self._is_of_image(sequence_ids)[:, :, None]
            logits = ops.where(is_read, ops.cast(logits, at_least_float32(logits.dtype)), EXCLUDED)
        weights = ops.cast(softmax_at_least_float32(logits), value.dtype)  # (batch, images, heads, length)
        pooled = ops.einsum("bihk,bkhd->bihd", weights, value)
        pooled = self.proj(ops.reshape(pooled, (-1, self.images_per_sequence or 1, dim)))
        if self.mlp_dim is not None:
            pooled = pooled + self.mlp(self.norm(pooled))
        return self._per_image(pooled)


# `pooling` of a config -> layer; the other poolings return every token
POOLINGS = {
    "token": TokenPooling,
    "first": TokenPooling,  # the first patch
    "gap": GlobalAveragePooling,
    "token_gap": TokenAndAveragePooling,
    "map": AttentionPooling,
    "aim": AttentionPooling,
}
