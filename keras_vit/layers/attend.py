"""Attention of all tokens to all tokens: at once, in chunks of queries, or by cuDNN's kernel.

JAX calls cuDNN's kernel on an NVIDIA GPU for 16-bit tensors. Delete what makes an odd number of tokens even when JAX's
backward pass takes odd numbers (a test fails then), and the rest of `flash_attention` when Keras's
`dot_product_attention` also calls the kernel there: Keras 3.15 silently stores all logits instead.
"""

import functools

import keras
from keras import ops

from keras_vit.layers.forms import CONVERTER, ONEDNN, is_for, is_on_gpu

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
    is_exact = images is None and _softmax_is_exact(logits)
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
            (of_key, of_value), parts = _scan(backward, sums, count, key.dtype)
            parts = ops.transpose(parts, (1, 2, 0, 3, 4))  # (batch, heads, chunks, size, channels)
            of_query = ops.reshape(parts, (-1, heads, count * size, ops.shape(parts)[-1]))[:, :, :length]
            return of_query, ops.cast(of_key, key.dtype), ops.cast(of_value, value.dtype)

        _, parts = _scan(forward, [], count, value.dtype)
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


def _softmax_is_exact(logits):
    """Return whether `ops.softmax(logits)` is exact to their 16 bits: computed in float32, as oneDNN does."""
    return logits.dtype == "bfloat16" and is_for(ONEDNN) and _has_exact_softmax()


@functools.cache
def _has_exact_softmax():
    import tensorflow as tf

    with tf.init_scope():  # eagerly; Eigen, which TensorFlow uses on other processors, sums in bfloat16
        logits = tf.cast(tf.linspace([-4.0], [4.0], 1024, axis=-1), "bfloat16")
        return bool(
            tf.reduce_all(tf.nn.softmax(logits) == tf.cast(tf.nn.softmax(tf.cast(logits, "float32")), "bfloat16"))
        )


def _scan(step, carry, count, dtype):
    """Return the last carry, and the stacked outputs, of `carry, output = step(carry, i)` for i = 0 to `count` - 1.

    A step starts after the last one has ended, so that the memory is that of one step. Keras's loops on TensorFlow run
    up to ten steps at the same time, or need outputs of the shape of the carry.

    Args:
        step: function of a list of tensors and an integer.
        carry: list of tensors, whose shapes and dtypes stay the same.
        count: number of steps.
        dtype: dtype of the outputs.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.scan(step, carry, ops.arange(count, dtype="int32"))
    import tensorflow as tf

    def body(i, carry, outputs):
        carry, output = step(carry, i)
        return i + 1, carry, outputs.write(i, output)

    start = (0, carry, tf.TensorArray(dtype, count))
    _, carry, outputs = tf.while_loop(lambda i, *_: i < count, body, start, parallel_iterations=1)
    return carry, outputs.stack()


def uses_flash_attention(tokens, width):
    """Return whether `flash_attention` computes the attention of `tokens` (batch, tokens, dim) in heads of `width`."""
    is_known = not keras.utils.is_keras_tensor(tokens) and isinstance(tokens.shape[1], int)
    return is_known and is_on_gpu() and _supports(keras.backend.standardize_dtype(tokens.dtype), width)


@functools.cache
def _supports(dtype, width):
    import jax

    heads = jax.ShapeDtypeStruct((1, 2, 1, width), dtype)
    try:
        jax.eval_shape(functools.partial(_kernel, scale=1.0, length=2), heads, heads, heads)
    except (NotImplementedError, RuntimeError, ValueError):  # float32, another width, an older GPU, no cuDNN
        return False
    return True


def flash_attention(query, key, value, scale=1.0, length=None):
    """Return softmax(scale query key^T) value of each head.

    The backward pass of JAX's function needs an even number of tokens; it gets an odd number with one more.

    Args:
        query, key, value: (batch, heads, tokens, head_dim).
        scale: factor of the logits.
        length: number of keys that the queries attend to, the first ones; None for all.

    Returns:
        (batch, tokens, heads, head_dim)
    """
    import jax

    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    tokens, run = query.shape[1], functools.partial(_kernel, scale=scale, length=length)
    if tokens % 2 == 0:
        return run(query, key, value)

    def with_one_more(*inputs):
        return _kernel(*map(with_even_length, inputs), scale=scale, length=length or tokens)[:, :tokens]

    odd = jax.custom_vjp(lambda *inputs: run(*inputs))
    odd.defvjp(lambda *inputs: jax.vjp(with_one_more, *inputs), lambda backward, slopes: backward(slopes))
    return odd(query, key, value)


def with_even_length(x, axis=1):
    """Return `x` with zeros appended along `axis` if its length is odd."""
    return ops.pad(x, [(0, x.shape[place] % 2 if place == axis % x.ndim else 0) for place in range(x.ndim)])


def _kernel(query, key, value, scale, length):
    import jax

    lengths = None if length is None else jax.numpy.full(len(query), length, "int32")
    return jax.nn.dot_product_attention(
        query, key, value, scale=scale, key_value_seq_lengths=lengths, implementation="cudnn"
    )
