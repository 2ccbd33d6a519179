"""MultiHeadSelfAttention: attention of all tokens to all tokens, with one fused projection."""

import functools
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.config import BlockConfig
from keras_vit.layers.attend import attend, check_positions, with_even_length
from keras_vit.layers.base import Layer, head_width
from keras_vit.layers.forms import absent, project, project_to_heads
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
        block: `BlockConfig`; its `norm`, `bias`, `attention_bias`, `key_bias`, `attention_norm` and `rotary` apply
            here. None is the default one.

    Shapes:
        (batch, tokens, dim) -> the same. The optional `positions` is a dict with any of: `relative_keys` (offsets,
        dim / num_heads) from `RelativePositions`; `attention_bias` (heads, tokens, tokens) from `AttentionBias`, added
        to the logits; `rotary` (2, tokens, dim / num_heads) from `RotaryEmbedding`; `key_sizes`, integers (batch, 1, 1,
        tokens), the number of original tokens in each key; `sequence_ids`, integers (batch, tokens), the image of each
        token of a packed sequence, or -1 for padding: a token attends only to tokens with the same number. With
        `return_attention_scores=True` the output is a pair with the attention weights after softmax and before dropout,
        (batch, heads, query tokens, key tokens). With `return_keys=True` its last part is the keys, averaged over the
        heads, (batch, tokens, dim / num_heads). A layer `norm` is applied to the tokens first.

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width; in a call, if
            `positions` has other names.
    """

    maps_per_head = 1  # of attention weights

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
        norm = functools.partial(self.make_norm, parts.norm, self.epsilon)
        self.query_norm = norm("query_norm", head_shape) if self.qk_norm else absent
        self.key_norm = norm("key_norm", head_shape) if self.qk_norm else absent
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout", shape=input_shape)
        self.output_norm = norm("output_norm", input_shape) if parts.attention_norm else absent
        self.proj = self.dense(dim, "proj", shape=input_shape, use_bias=parts.bias and parts.attention_bias)

    def call(
        self,
        tokens: Tensor,
        positions: Mapping[str, Tensor] | None = None,
        training: bool | None = None,
        *,
        return_attention_scores: bool = False,
        return_keys: bool = False,
        norm: keras.layers.Layer | None = None,
    ) -> Tensor:
        dim = tokens.shape[-1]
        dropout = self.dropout if training and self.dropout_rate else None
        form = {"training": training, "dropout": dropout, "with_scores": return_attention_scores}
        widths = (dim // self.num_heads // self.maps_per_head, dim // self.num_heads)
        tokens, positions, cut = with_even_length(tokens, check_positions(positions), widths, **form)
        # [q, k, v] = z U_qkv, Eq. 5
        query, key, value = self._heads(tokens, norm, training)
        query, key = self._with_positions(query, key, positions)
        # SA(z) = softmax(q k^T / sqrt(D_h)) v, Eqs. 6 and 7
        attended = self._attend(query, key, value, positions, **form)
        heads, *scores = attended if return_attention_scores else (attended,)
        # MSA(z) = [SA_1(z); ...; SA_k(z)] U_msa, Eq. 8
        heads = ops.reshape(heads, (-1, ops.shape(tokens)[1], dim))
        output = cut(project(self.proj, self.output_norm(heads)))
        keys = [cut(ops.mean(key, axis=1))] if return_keys else []
        return (output, *scores, *keys) if scores or keys else output

    def _heads(self, tokens, norm, training):
        """Return queries, keys and values of norm(tokens), each (batch, heads, tokens, head_dim)."""
        query, key, value = project_to_heads(self.qkv, tokens, self.num_heads, norm, training)
        if self.has_two_biases:
            query, value = query + self._per_head(self.query_bias), value + self._per_head(self.value_bias)
        return self.query_norm(query), self.key_norm(key), value

    def _per_head(self, bias):
        """(dim,) -> (heads, 1, head_dim)"""
        return ops.reshape(ops.cast(bias, self.compute_dtype), (self.num_heads, 1, -1))

    def _with_positions(self, query, key, positions):
        """Return queries and keys with the positions that they carry themselves: rotary ones."""
        if "rotary" not in positions:
            return query, key
        return (rotate(x, positions["rotary"], self.block.rotary) for x in (query, key))

    _attend = staticmethod(attend)

    def compute_output_spec(self, tokens, *others, **keywords):
        if keywords.get("return_attention_scores") or keywords.get("return_keys"):
            return keras.Operation.compute_output_spec(self, tokens, *others, **keywords)  # traces the call
        return keras.KerasTensor(tokens.shape, dtype=self.compute_dtype)
