"""Attention of all tokens to all tokens: at once, or in chunks of queries."""

import keras
from keras import ops

from keras_vit.compat.kernels import CONVERTER, is_for, scan, softmax_is_exact

# Measured on a CPU for ViT-B/16: from 1025 tokens on, chunks of 256 queries are as fast as all queries at once; chunks
# of 128 or fewer are slower below 2049 tokens, and chunks of 512 or more are slower from 4097 tokens on.
_AT_ONCE = 1024  # up to this number of tokens, the logits are computed at once
_CHUNK = 256  # at most so many queries are in a chunk
EXCLUDED = -1e9  # logit of a key that a query does not attend to; finite, so that no row becomes NaN


def attend(query, key, value, images=None):
    """Return softmax(q k^T) v of each head (arXiv 2010.11929, Eqs. 6 and 7).

    Up to 1024 tokens, all logits are computed at once. For more tokens, the memory grows linearly: chunks of queries
    are computed one after another, and again in the backward pass, with the exact softmax. Graphs for converters and
    for counting operations have the first form.

    Args:
        query, key: (batch, heads, tokens, channels); the query is already scaled.
        value: (batch, heads, tokens, head_dim).
        images: integers (batch, tokens), the image of each token of a packed sequence, or -1 for padding. A token
            attends only to tokens with the same number. None if all tokens attend to all.

    Returns:
        (batch, tokens, heads, head_dim)
    """
    if is_at_once(query):
        return _at_once(query, key, value, images)
    # a graph of TensorFlow for any number of tokens has one chunk for a few of them
    return _in_chunks(query, key, value, images)


def is_at_once(query):
    """Return whether `attend` computes all logits for this query at once."""
    tokens = ops.shape(query)[2]
    return keras.utils.is_keras_tensor(query) or is_for(CONVERTER) or isinstance(tokens, int) and tokens <= _AT_ONCE


def attention_weights(logits, images=None):
    """Apply softmax over the last axis; 16-bit logits give float32 weights.

    Args:
        logits: (batch, heads, query tokens, key tokens).
        images: as in `attend`; or a pair of them for the queries, (batch, 1, query tokens, 1), and for the keys,
            (batch, 1, 1, key tokens).
    """
    if images is not None:
        of_queries, of_keys = images if isinstance(images, tuple) else (images[:, None, :, None], images[:, None, None])
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        logits = ops.where(ops.equal(of_queries, of_keys), logits, EXCLUDED)
    return softmax_at_least_float32(logits)


def _at_once(query, key, value, images):
    logits = ops.einsum("bhqd,bhkd->bhqk", query, key)
    is_exact = images is None and softmax_is_exact(logits)
    return _weighted(ops.softmax(logits) if is_exact else attention_weights(logits, images), value)


def _in_chunks(query, key, value, images):
    batch, heads, length, _ = ops.shape(query)
    count = -(-length // _CHUNK) if isinstance(length, int) else ops.where(length <= _AT_ONCE, 1, -(-length // _CHUNK))
    size = -(-length // count)  # of each chunk; the last one is padded
    padding = ((0, 0), (0, 0), (0, count * size - length), (0, 0))
    of_keys = None if images is None else images[:, None, None]
    of_queries = None if images is None else ops.pad(images[:, None, :, None], padding)

    def cut(x, i):
        return ops.slice(x, (0, 0, i * size, 0), (batch, x.shape[1], size, ops.shape(x)[3]))

    @ops.custom_gradient
    def differentiable(query, key, value):
        padded = ops.pad(query, padding)

        def weights(i):
            logits = ops.einsum("bhqd,bhkd->bhqk", cut(padded, i), key)
            return attention_weights(logits, None if images is None else (cut(of_queries, i), of_keys))

        def forward(carry, i):
            return carry, _weighted(weights(i), value)

        def gradient(upstream):
            upstream = ops.pad(ops.transpose(upstream, (0, 2, 1, 3)), padding)

            def backward(carry, i):
                share, slope = weights(i), cut(upstream, i)
                added_value = _transposed_product(ops.cast(share, value.dtype), slope)
                slope = ops.cast(ops.einsum("bhqd,bhkd->bhqk", slope, value), share.dtype)
                slope = share * (slope - ops.sum(share * slope, axis=-1, keepdims=True))  # of the logits
                slope = ops.cast(slope, key.dtype)
                added_key = _transposed_product(slope, cut(padded, i))
                carry = [ops.add(total, added) for total, added in zip(carry, (added_key, added_value), strict=True)]
                return carry, ops.matmul(slope, key)

            sums = [ops.zeros_like(x, dtype=at_least_float32(x.dtype)) for x in (key, value)]
            (of_key, of_value), parts = scan(backward, sums, count, key.dtype)
            parts = ops.transpose(parts, (1, 2, 0, 3, 4))  # (batch, heads, chunks, size, channels)
            of_query = ops.reshape(parts, (-1, heads, count * size, ops.shape(parts)[-1]))[:, :, :length]
            return of_query, ops.cast(of_key, key.dtype), ops.cast(of_value, value.dtype)

        _, parts = scan(forward, [], count, value.dtype)
        parts = ops.transpose(parts, (1, 0, 2, 3, 4))  # (batch, chunks, size, heads, head_dim)
        return ops.reshape(parts, (-1, count * size, heads, parts.shape[-1]))[:, :length], gradient

    return differentiable(query, key, value)


def _weighted(weights, value):
    """Return (batch, query tokens, heads, head_dim)."""
    return ops.transpose(ops.matmul(ops.cast(weights, value.dtype), value), (0, 2, 1, 3))


def _transposed_product(x, y):
    """(batch, heads, tokens, m), (batch, heads, tokens, n) -> (batch, heads, m, n)"""
    return ops.matmul(ops.transpose(x, (0, 1, 3, 2)), y)


def softmax_at_least_float32(logits):
    """Apply softmax over the last axis; 16-bit logits give float32 weights."""
    logits = ops.cast(logits, at_least_float32(logits.dtype))
    if logits.shape[-1] == 1:  # Keras warns of a softmax over a single key
        return ops.ones_like(logits)
    return ops.softmax(logits)


def at_least_float32(dtype):
    """Return float32 for a 16-bit dtype and any other dtype unchanged."""
    return "float32" if keras.backend.standardize_dtype(dtype) in ("float16", "bfloat16") else dtype
