"""MultiHeadSelfAttention: attention of all tokens to all tokens, with one fused projection."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_vit.config import BlockConfig
from keras_vit.layers.attend import (
    at_least_float32,
    attend,
    attention_weights,
    flash_attention,
    is_at_once,
    uses_flash_attention,
    with_even_length,
)
from keras_vit.layers.base import Layer, head_width, with_norm
from keras_vit.layers.forms import project, project_heads, recompute, scaled
from keras_vit.layers.position_embs import relative_logits
from keras_vit.layers.rotary import rotate
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(Layer):
    """Apply multi-head self-attention (arXiv 2010.11929, appendix A, Eqs. 5 to 8).

    One dense layer computes [query, key, value], each as [head 0, head 1, ...].

    Args:
        num_heads: number of heads; it must divide the width of the input.
        dropout_rate: dropout rate on the attention weights, in [0, 1).
        qkv_bias: whether the fused projection has a bias.
        qk_norm: whether queries and keys are normalised over the channels of each head (arXiv 2302.05442).
        epsilon: epsilon of the norms.
        block: `BlockConfig`; its `norm`, `bias`, `key_bias`, `attention_norm` and `rotary` apply here. None is the
            default one.

    Shapes:
        (batch, tokens, dim) -> the same. Optional inputs: `relative_keys` (offsets, dim / num_heads) from
        `RelativePositions`; `attention_bias` (heads, tokens, tokens) from `AttentionBias`, added to the logits;
        `rotary` (2, tokens, dim / num_heads) from `RotaryEmbedding`; and `key_sizes`, integers (batch, 1, 1, tokens),
        the number of original tokens in each key; and `images`, integers (batch, tokens), the image of each token: a
        token attends only to tokens of the same image. With `return_attention_scores=True` the output is a pair with
        the attention weights after softmax and before dropout, (batch, heads, query tokens, key tokens). With
        `return_keys=True` it is a pair with the keys, averaged over the heads, (batch, tokens, dim / num_heads).
        A layer `norm` is applied to the tokens first. A subclass may pass `extend`, a function of the scaled queries
        and the keys (batch, heads, tokens, head_dim) to both with more channels.

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width; at call, if scores
            and keys are both requested.
    """

    def __init__(
        self,
        num_heads: int,
        dropout_rate: float = 0.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        epsilon: float = 1e-6,
        block: BlockConfig | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, dropout_rate=dropout_rate)
        self.configure(qkv_bias=qkv_bias, qk_norm=qk_norm, epsilon=epsilon, block=block)

    def build(self, input_shape):
        dim = input_shape[-1]
        head_shape = (input_shape[0], self.num_heads, input_shape[1], head_width(self.num_heads, dim))
        # Xavier-uniform on each of the three (dim, dim) kernels, as in the official code: U(+-sqrt(6 / 2 dim)), which
        # equals LeCun-uniform on the fused (dim, 3 dim) kernel.
        parts = self.block
        self.has_two_biases = self.qkv_bias and not parts.key_bias
        use_bias = self.qkv_bias and parts.key_bias
        self.qkv = self.dense(3 * dim, "qkv", "lecun_uniform", input_shape, use_bias=use_bias)
        if self.has_two_biases:
            self.query_bias = self.add_weight(name="query_bias", shape=(dim,), initializer="zeros")
            self.value_bias = self.add_weight(name="value_bias", shape=(dim,), initializer="zeros")
        if self.qk_norm:
            self.query_norm = self.make_norm(parts.norm, self.epsilon, "query_norm", head_shape)
            self.key_norm = self.make_norm(parts.norm, self.epsilon, "key_norm", head_shape)
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout", shape=input_shape)
        if parts.attention_norm:
            self.output_norm = self.make_norm(parts.norm, self.epsilon, "output_norm", input_shape)
        self.proj = self.dense(dim, "proj", shape=input_shape, use_bias=parts.bias)

    def call(
        self,
        tokens: Tensor,
        relative_keys: Tensor = None,
        training: bool | None = None,
        *,
        attention_bias: Tensor = None,
        rotary: Tensor = None,
        return_attention_scores: bool = False,
        key_sizes: Tensor = None,
        return_keys: bool = False,
        images: Tensor = None,
        extend: Callable | None = None,
        norm: keras.layers.Layer | None = None,
    ) -> Tensor:
        if return_keys and return_attention_scores:
            raise ValueError(
                "only one of return_keys and return_attention_scores may be True; got return_keys=True, "
                "return_attention_scores=True"
            )
        _, length, dim = ops.shape(tokens)
        terms, drops = (relative_keys, attention_bias), bool(training and self.dropout_rate)
        given = [term for term in terms if term is not None]
        needs_weights = return_attention_scores or drops or given or key_sizes is not None
        flash = not needs_weights and images is None and extend is None
        flash = flash and uses_flash_attention(tokens, dim // self.num_heads)
        is_odd = bool(flash and training and length % 2)  # for the backward pass, one token is added inside the layer
        even = with_even_length if is_odd else lambda x, axis=1: x
        # scaling the query and not its product with the key avoids overflow in float16
        scale = 1.0 / math.sqrt(dim // self.num_heads)
        # In training, the query is scaled where it is used, so that only the query itself is stored.
        early, late = (1.0, scale) if (training or flash) and extend is None else (scale, 1.0)
        # [q, k, v] = z U_qkv, Eq. 5
        scales = (1.0 if self.qk_norm else early, 1.0, 1.0)
        split = lambda x: project_heads(self.qkv, even(x), scales, self.num_heads)  # noqa: E731
        query, key, value = with_norm(norm, self.qkv, split, tokens, training)
        if self.has_two_biases:
            query = query + self._per_head(self.query_bias, query.dtype) * scales[0]
            value = value + self._per_head(self.value_bias, value.dtype)
        if self.qk_norm:
            query, key = scaled(self.query_norm(query), early), self.key_norm(key)
        if rotary is not None:
            rotary = even(rotary, axis=-2)
            query, key = rotate(query, rotary, self.block.rotary), rotate(key, rotary, self.block.rotary)
        if extend is not None:
            query, key = extend(query, key)

        def run(query, key, value, *given):
            if flash:
                return flash_attention(query, key, value, late, length if is_odd else None)
            query, given = scaled(query, late), iter(given)
            if not needs_weights:
                return attend(query, key, value, images)
            relative, bias = (None if term is None else next(given) for term in terms)
            weights = self._weights(query, key, relative, bias, key_sizes, images)
            dropped = self.dropout(ops.cast(weights, value.dtype), training=training)
            heads = ops.transpose(ops.matmul(dropped, value), (0, 2, 1, 3))  # (batch, length, heads, head_dim)
            return (heads, weights) if return_attention_scores else heads

        if training and not (return_attention_scores or flash) and (needs_weights or is_at_once(query)):
            run = partial(recompute, [self.dropout], run)
        heads = run(query, key, value, *given)
        heads, *scores = heads if return_attention_scores else (heads,)
        # MSA(z) = [SA_1; ...; SA_k] U_msa, Eq. 8
        heads = ops.reshape(heads, (-1, length + 1 if is_odd else length, dim))
        output = project(self.proj, self.output_norm(heads) if self.block.attention_norm else heads)
        if is_odd:
            output, key = output[:, :length], key[:, :, :length]
        if return_keys:
            return output, ops.mean(key, axis=1)
        return (output, *scores) if scores else output

    def _weights(self, query, key, relative_keys, attention_bias, key_sizes, images):
        logits = ops.einsum("bhqd,bhkd->bhqk", query, key)
        if relative_keys is not None:
            logits = logits + relative_logits(query, relative_keys)  # appendix D.4
        if attention_bias is not None:
            logits = ops.cast(logits, attention_bias.dtype) + attention_bias
        if key_sizes is not None:
            logits = ops.cast(logits, at_least_float32(logits.dtype))
            logits = logits + ops.log(ops.cast(key_sizes, logits.dtype))  # arXiv 2210.09461, Eq. 1
        return attention_weights(logits, images)

    def _per_head(self, bias, dtype):
        """(dim,) -> (heads, 1, head_dim)"""
        return ops.reshape(ops.cast(bias, dtype), (self.num_heads, 1, -1))

    def compute_output_spec(self, tokens, *others, return_attention_scores=False, return_keys=False, **keywords):
        batch, length, dim = tokens.shape
        output = keras.KerasTensor(tokens.shape, dtype=self.compute_dtype)
        if return_keys:
            return output, keras.KerasTensor((batch, length, dim // self.num_heads), dtype=self.compute_dtype)
        scores = keras.KerasTensor((batch, self.num_heads, length, length), at_least_float32(self.compute_dtype))
        return (output, scores) if return_attention_scores else output
