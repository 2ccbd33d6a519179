"""The mask decoder of SAM (arXiv 2304.02643, appendix A): two-way attention between prompts and the image."""

import functools
import math
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer, build_in_sequence, head_width
from keras_vit.layers.forms import gelu
from keras_vit.layers.perceptron import Perceptron
from keras_vit.typing import Tensor

_EPSILON = 1e-6  # of the norm of the upscaling
_LAST_EPSILON = 1e-5  # of the norm after the last attention


@keras.saving.register_keras_serializable(package="keras_vit")
class PromptAttention(Layer):
    """Multi-head attention with inputs of its own for queries, keys and values, and a smaller width inside.

    Args:
        num_heads: number of heads.
        reduction: the width of queries, keys and values is that of the input divided by it.

    Shapes:
        query (batch, tokens, dim), key and value (batch, others, dim) -> (batch, tokens, dim)

    Raises:
        ValueError: if a value is out of range, or the heads or the reduction do not divide the width.
    """

    def __init__(self, num_heads: int, reduction: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, reduction=reduction)

    def build(self, input_shape, *others):
        dim = input_shape[-1]
        if dim % self.reduction:
            raise ValueError(f"reduction must divide the width of the input; got {self.reduction} and {dim}")
        width = dim // self.reduction
        head_width(self.num_heads, width)
        self.query, self.key, self.value = (
            self.dense(width, name, shape=(None, None, dim)) for name in ("query", "key", "value")
        )
        self.proj = self.dense(dim, "proj", shape=(None, None, width))

    def call(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        width = self.query.units // self.num_heads
        query, key, value = (
            ops.reshape(x, (*ops.shape(x)[:2], self.num_heads, width))
            for x in (self.query(query), self.key(key), self.value(value))
        )
        logits = ops.einsum("bqhd,bkhd->bhqk", query / math.sqrt(width), key)
        wide = keras.backend.result_type(logits.dtype, "float32")
        weights = ops.cast(ops.softmax(ops.cast(logits, wide)), value.dtype)
        heads = ops.einsum("bhqk,bkhd->bqhd", weights, value)
        return self.proj(ops.reshape(heads, (*ops.shape(heads)[:2], self.value.units)))

    def compute_output_spec(self, query, key, value):
        return keras.KerasTensor(query.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class TwoWayBlock(Layer):
    """Update tokens and image: self-attention, tokens to image, an MLP with ReLU, and image to tokens.

    A norm follows each step and its residual connection. Queries and keys have positions, values have none.

    Args:
        num_heads: number of heads.
        mlp_dim: hidden width of the MLP.
        reduction: of the two attentions between tokens and image, see `PromptAttention`.
        is_first: whether this is the first block, in which the self-attention has neither positions nor a residual
            connection.
        epsilon: epsilon of the norms.

    Shapes:
        tokens (batch, tokens, dim), image (batch, cells, dim), and the positions of both -> tokens and image

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(
        self,
        num_heads: int = 8,
        mlp_dim: int = 2048,
        reduction: int = 2,
        is_first: bool = False,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, mlp_dim=mlp_dim, reduction=reduction, is_first=is_first, epsilon=epsilon)

    def build(self, input_shape, *others):
        dim, attention = input_shape[-1], functools.partial(self.sublayer, PromptAttention, self.num_heads)
        shape = (None, None, dim)
        self.self_attention = attention(name="self_attention", shape=shape)
        self.to_image = attention(self.reduction, name="to_image", shape=shape)
        self.from_image = attention(self.reduction, name="from_image", shape=shape)
        self.mlp = self.sublayer(Perceptron, (self.mlp_dim, dim), name="mlp", shape=shape)
        self.norms = [self.make_norm("layer", self.epsilon, f"norm{number}", shape) for number in range(1, 5)]

    def call(
        self, tokens: Tensor, image: Tensor, token_positions: Tensor, image_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm1, norm2, norm3, norm4 = self.norms
        if self.is_first:
            tokens = norm1(self.self_attention(tokens, tokens, tokens))
        else:
            placed = tokens + token_positions
            tokens = norm1(tokens + self.self_attention(placed, placed, tokens))
        keys = image + image_positions
        tokens = norm2(tokens + self.to_image(tokens + token_positions, keys, image))
        tokens = norm3(tokens + self.mlp(tokens))
        return tokens, norm4(image + self.from_image(keys, tokens + token_positions, tokens))

    def compute_output_spec(self, tokens, image, token_positions, image_positions):
        return tuple(keras.KerasTensor(x.shape, self.compute_dtype) for x in (tokens, image))


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskDecoder(Layer):
    """Predict masks and their quality from an image embedding and the tokens of prompts.

    A token for the quality, and one per mask, join the tokens of the prompt in two-way blocks, and a last attention
    follows (norm with epsilon 1e-5). Two transposed convolutions enlarge the image by 4, with a norm (epsilon 1e-6) and
    GELU (exact) after the first, and GELU after the second. A mask is the product of this map with its token after an
    MLP with ReLU.

    Args:
        num_masks: number of masks of an ambiguous prompt; one more, the first, is for prompts that are not.
        num_blocks: number of two-way blocks.
        num_heads: number of heads.
        mlp_dim: hidden width of the MLPs of the blocks.
        reduction: see `PromptAttention`.
        iou_dim: hidden width of the MLP that predicts the quality.
        epsilon: epsilon of the norms of the blocks.

    Shapes:
        image embeddings (batch, rows, columns, dim), their positions (1, rows, columns, dim), tokens (batch, prompts,
        tokens, dim), and maps of masks (batch, prompts or 1, rows, columns, dim) -> logits of masks (batch, prompts,
        num_masks + 1, 4 * rows, 4 * columns) and the predicted IoU of each (batch, prompts, num_masks + 1)

    Raises:
        ValueError: if a value is out of range, or the width is no multiple of 8.
    """

    def __init__(
        self,
        num_masks: int = 3,
        num_blocks: int = 2,
        num_heads: int = 8,
        mlp_dim: int = 2048,
        reduction: int = 2,
        iou_dim: int = 256,
        epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_masks=num_masks, num_blocks=num_blocks, num_heads=num_heads, mlp_dim=mlp_dim)
        self.configure(reduction=reduction, iou_dim=iou_dim, epsilon=epsilon)

    def build(self, input_shape, *others):
        dim, count = input_shape[-1], self.num_masks + 1
        checks.check_divisible("the width of the image embedding", (dim,), "8", (8,))
        shape = (None, None, dim)
        self.iou_token = self.normal_weight("iou_token", (1, dim))
        self.mask_tokens = self.normal_weight("mask_tokens", (count, dim))
        arguments = (self.num_heads, self.mlp_dim, self.reduction)
        self.blocks = [
            self.sublayer(TwoWayBlock, *arguments, not number, self.epsilon, name=f"block_{number}", shape=shape)
            for number in range(self.num_blocks)
        ]
        last = {"name": "last_attention", "shape": shape}
        self.last_attention = self.sublayer(PromptAttention, self.num_heads, self.reduction, **last)
        self.last_norm = self.make_norm("layer", _LAST_EPSILON, "last_norm", shape)
        enlarge = functools.partial(self.sublayer, keras.layers.Conv2DTranspose, data_format="channels_last")
        self.upscale1 = enlarge(dim // 4, 2, 2, name="upscale1")
        self.upscale_norm = self.make_norm("layer", _EPSILON, "upscale_norm")
        self.upscale2 = enlarge(dim // 8, 2, 2, name="upscale2")
        build_in_sequence((None, None, None, dim), self.upscale1, self.upscale_norm, self.upscale2)
        perceptron = functools.partial(self.sublayer, Perceptron, shape=shape)
        self.mask_heads = [perceptron((dim, dim, dim // 8), name=f"mask_head_{number}") for number in range(count)]
        self.iou_head = perceptron((self.iou_dim, self.iou_dim, count), name="iou_head")

    def call(self, embeddings: Tensor, positions: Tensor, tokens: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        count, (batch, prompts) = self.num_masks + 1, ops.shape(tokens)[:2]
        tokens, image = self.features(embeddings, positions, tokens, maps)
        heads = [head(tokens[:, number]) for number, head in enumerate(self.mask_heads, start=1)]
        masks = ops.einsum("bmd,brcd->bmrc", ops.stack(heads, axis=1), image)
        masks = ops.reshape(masks, (batch, prompts, count, *ops.shape(image)[1:3]))
        return masks, ops.reshape(self.iou_head(tokens[:, 0]), (batch, prompts, count))

    def features(self, embeddings: Tensor, positions: Tensor, tokens: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens after the last norm and the enlarged map, see the class.

        Args:
            embeddings, positions, tokens, maps: as in a call.

        Returns:
            Tokens (batch * prompts, num_masks + 2 + tokens, dim): that of the quality, those of the masks, and those of
            the prompt; and the map (batch * prompts, 4 * rows, 4 * columns, dim / 8).
        """
        dim, (batch, prompts) = embeddings.shape[-1], ops.shape(tokens)[:2]
        rows, columns = ops.shape(embeddings)[1:3]
        own = ops.cast(ops.concatenate([self.iou_token, self.mask_tokens], axis=0), tokens.dtype)
        own = ops.broadcast_to(own, (batch, prompts, self.num_masks + 2, dim))
        tokens = ops.concatenate([own, tokens], axis=2)
        tokens = token_positions = ops.reshape(tokens, (batch * prompts, -1, dim))
        image = ops.broadcast_to(embeddings[:, None] + maps, (batch, prompts, rows, columns, dim))
        image = ops.reshape(image, (batch * prompts, rows * columns, dim))
        positions = ops.reshape(positions, (1, rows * columns, dim))
        for block in self.blocks:
            tokens, image = block(tokens, image, token_positions, positions)
        attended = self.last_attention(tokens + token_positions, image + positions, image)
        tokens = self.last_norm(tokens + attended)
        image = ops.reshape(image, (batch * prompts, rows, columns, dim))
        image = gelu(self.upscale_norm(self.upscale1(image)), False)
        return tokens, gelu(self.upscale2(image), False)

    def compute_output_spec(self, embeddings, positions, tokens, maps):
        lead = (*tokens.shape[:2], self.num_masks + 1)
        sides = tuple(side and 4 * side for side in embeddings.shape[1:3])
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in ((*lead, *sides), lead))
