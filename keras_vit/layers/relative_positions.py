"""RelativePositions: learned keys for the offsets between patches, and the attention logits from them."""

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.position_grid import resize_position_embedding


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositions(keras.layers.Layer):
    """Return one learned key per 1-D offset p_q - p_k between patches.

    This follows arXiv 2010.11929, appendix D.4. Pass the keys to `MultiHeadSelfAttention` or `TransformerBlock`, which
    adds the product of each query with the key of its offset to the attention logit. Patches are in raster order, and
    all heads share the keys. As the paper defines offsets between patches only, class tokens and registers get no such
    logits. If the head reads the class token only, the keys of the last block therefore receive no gradient.

    Args:
        num_heads: number of heads of the attention that uses the keys; they must divide the width of the input.
        num_prefix_tokens: number of class and register tokens at the start of the sequence.

    Shapes:
        (batch, num_prefix_tokens + patches, dim) -> keys (2 * patches - 1, dim / num_heads); row i belongs to the
        offset i - (patches - 1), and there is no batch axis

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width or the number of
            tokens is unknown.
    """

    def __init__(self, num_heads, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = checks.check_integer("num_heads", num_heads)
        self.num_prefix_tokens = checks.check_integer("num_prefix_tokens", num_prefix_tokens, minimum=0)

    def build(self, input_shape):
        self.embedding = self.add_weight(
            name="embedding",
            shape=self.compute_output_shape(input_shape),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def call(self, tokens):
        return ops.cast(self.embedding, tokens.dtype)

    def compute_output_shape(self, input_shape):
        _, tokens, dim = input_shape
        if tokens is None or tokens <= self.num_prefix_tokens:
            raise ValueError(
                f"RelativePositions needs a known number of tokens above num_prefix_tokens={self.num_prefix_tokens}; "
                f"got input shape {input_shape}"
            )
        if dim % self.num_heads:
            raise ValueError(f"num_heads must divide the width of the input; got {self.num_heads} and {dim}")
        return (2 * (tokens - self.num_prefix_tokens) - 1, dim // self.num_heads)

    def load_own_variables(self, store):
        self.embedding.assign(self.resized(self.embedding, np.asarray(store["0"])))

    def resize_from(self, other, method="align_corners"):
        """Copy the keys from the same layer of a model for another image size, interpolated between offsets."""
        self.embedding.assign(self.resized(self.embedding, ops.convert_to_numpy(other.embedding), method))

    def resized(self, variable, table, method="align_corners"):
        """Return the keys (2 * patches - 1, dim / num_heads) resized from another number of patches."""
        return resize_position_embedding(table, (len(table), 1), (variable.shape[0], 1), 0, method)

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads, "num_prefix_tokens": self.num_prefix_tokens}


def relative_logits(query, keys):
    """Return the product of each query with the key of its offset p_q - p_k, for all pairs of tokens.

    Args:
        query: (batch, heads, tokens, head_dim); the last (offsets + 1) / 2 tokens are patches.
        keys: (offsets, head_dim), from `RelativePositions`.

    Returns:
        (batch, heads, query tokens, key tokens); 0 unless both tokens are patches.
    """
    offsets = keys.shape[0]
    patches = (offsets + 1) // 2
    prefix = query.shape[2] - patches
    # The keys are reversed, so query q finds key k in column (patches - 1) - q + k, one further left per row. Cutting
    # the flattened products into rows that are one shorter aligns the columns.
    products = ops.einsum("bhqd,od->bhqo", query[:, :, prefix:], ops.flip(keys, axis=0))
    heads = products.shape[1]
    flat = ops.reshape(ops.pad(products, ((0, 0), (0, 0), (0, 0), (0, 1))), (-1, heads, patches * 2 * patches))
    flat = flat[:, :, patches - 1 : patches - 1 + patches * offsets]
    logits = ops.reshape(flat, (-1, heads, patches, offsets))[..., :patches]
    return ops.pad(logits, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))
