"""Attention of all tokens to all tokens: at once, in chunks of queries, or by cuDNN's kernel.

JAX calls cuDNN's kernel on an NVIDIA GPU for 16-bit tensors. Delete what makes an odd number of tokens even when JAX's
backward pass takes odd numbers (a test fails then), and the rest of the kernel's code when Keras's
`dot_product_attention` also calls the kernel there: Keras 3.15 silently stores all logits instead.
"""

import functools
import math
from collections.abc import Mapping

import keras
from keras import ops

from keras_vit.layers.forms import CONVERTER, ONEDNN, is_for, is_on_gpu, recompute
from keras_vit.layers.position_bias import relative_logits

# Measured on a CPU for ViT-B/16: from 1025 tokens on, chunks of 256 queries are as fast as all queries at once; chunks
# of 128 or fewer are slower below 2049 tokens, and chunks of 512 or more are slower from 4097 tokens on.
_AT_ONCE = 1024  # up to this number of tokens, the logits are computed at once
_CHUNK = 256  # at most so many queries are in a chunk
EXCLUDED = -1e9  # logit of a key that a query does not attend to; finite, so that no row becomes NaN


def check_positions(positions, names=None):
    """Return the dict `positions`, an empty one for None; raise `ValueError` unless its keys are among `names`.

    None for `names` allows the terms of the logits, and what queries and keys carry themselves.
    """
    if positions is None:
        return {}
    names = (*_TERMS, "rotary", "extend") if names is None else names
    if not isinstance(positions, Mapping) or not positions.keys() <= set(names):
        got = list(positions) if isinstance(positions, Mapping) else type(positions).__name__
        raise ValueError(f"positions must be None or a dict of tensors with names among {', '.join(names)}; got {got}")
    return positions


def with_even_length(tokens, positions, widths, training, dropout=None, with_scores=False):
    """Add a token if `attend` will need an even number of them, as the backward pass of cuDNN's kernel does.

    Args:
        tokens: (batch, tokens, dim), before their projection to queries, keys and values.
        widths: widths of the queries and of the values of each head.
        positions, training, dropout, with_scores: as in `attend`.

    Returns:
        The tokens, the positions, and a function that removes the added token from outputs (batch, tokens, ...).
    """
    length = tokens.shape[1]
    is_used = training and _uses_kernel(tokens, (length, *widths), positions, dropout, with_scores)
    if not is_used or length % 2 == 0:
        return tokens, positions, lambda outputs: outputs
    positions = {**positions, "length": length}
    if "rotary" in positions:
        positions["rotary"] = _even(positions["rotary"], axis=-2)
    return _even(tokens), positions, lambda outputs: outputs[:, :length]


def attend(query, key, value, positions=None, training=None, dropout=None, with_scores=False):
    """Return softmax(q k^T / sqrt(D_h)) v of each head (arXiv 2010.11929, Eqs. 6 and 7).

    Up to 1024 tokens, all logits are computed at once, and in training again in the backward pass. For more tokens, the
    memory grows linearly: chunks of queries are computed one after another, and again in the backward pass, with the
    exact softmax. Graphs for converters and for counting operations have the first form, and so have calls that need
    all weights or add a term to the logits.

    Args:
        query, key: (batch, heads, tokens, channels).
        value: (batch, heads, tokens, head_dim).
        positions: dict of what places tokens, see `MultiHeadSelfAttention`; queries and keys are already rotated.
            `length` is the number of keys that the queries attend to, the first ones.
        training: whether this is a call in training.
        dropout: dropout layer of the attention weights, or None.
        with_scores: whether to return the weights, too.

    Returns:
        (batch, tokens, heads, head_dim); `with_scores` a pair with the attention weights after softmax and before
        dropout, (batch, heads, query tokens, key tokens)
    """
    positions = positions or {}
    terms = {name: positions[name] for name in _TERMS if name in positions}
    # Scaling the query and not its product with the key avoids overflow in float16. In training, the query is scaled
    # where it is used, so that only the query itself is stored.
    scale = 1.0 / math.sqrt(value.shape[-1])
    if _uses_kernel(value, (*query.shape[2:], value.shape[3]), positions, dropout, with_scores):
        return _by_kernel(query, key, value, scale, positions.get("length"))
    needs_all_weights = with_scores or dropout is not None or not terms.keys() <= {"sequence_ids"}
    if not (needs_all_weights or _is_at_once(query)):
        return _in_chunks(query * scale, key, value, terms.get("sequence_ids"))

    def at_once(query, key, value, terms):
        query = query * scale
        logits = ops.einsum("bhqd,bhkd->bhqk", query, key)
        for name, term in terms.items():
            logits = _TERMS[name](logits, term, query)
        needs_no_cast = not (terms or with_scores) and _softmax_is_exact(logits)
        weights = ops.softmax(logits) if needs_no_cast else softmax_at_least_float32(logits)
        shares = ops.cast(weights, value.dtype)
        heads = _weighted(shares if dropout is None else dropout(shares, training=training), value)
        return (heads, weights) if with_scores else heads

    layers = [] if dropout is None else [dropout]
    return recompute(layers, at_once, query, key, value, terms, when=training and not with_scores)


def _add_relative(logits, keys, query):
    return logits + relative_logits(query, keys)  # appendix D.4


def _add_bias(logits, bias, _):
    return ops.cast(logits, bias.dtype) + bias


def _add_sizes(logits, sizes, _):
    logits = ops.cast(logits, at_least_float32(logits.dtype))
    return logits + ops.log(ops.cast(sizes, logits.dtype))  # arXiv 2210.09461, Eq. 1


def _mask_others(logits, ids, _=None):
    """Exclude keys of other images; `ids` may be a pair, of the queries and of the keys, that broadcasts."""
    of_queries, of_keys = ids if isinstance(ids, tuple) else (ids[:, None, :, None], ids[:, None, None])
    logits = ops.cast(logits, at_least_float32(logits.dtype))
    return ops.where(ops.equal(of_queries, of_keys), logits, EXCLUDED)


# name in `positions` -> function of the logits, of what `positions` has under this name, and of the scaled queries; it
# returns the changed logits
_TERMS = {
    "relative_keys": _add_relative,
    "attention_bias": _add_bias,
    "key_sizes": _add_sizes,
    "sequence_ids": _mask_others,
}


def _is_at_once(query):
    tokens = ops.shape(query)[2]
    return keras.utils.is_keras_tensor(query) or is_for(CONVERTER) or isinstance(tokens, int) and tokens <= _AT_ONCE


def _in_chunks(query, key, value, ids):
    chunks = _Chunks(query)
    of_queries = None if ids is None else chunks.padded(ids[:, None, :, None])
    of_keys = None if ids is None else ids[:, None, None]

    @ops.custom_gradient
    def differentiable(query, key, value):
        padded = chunks.padded(query)

        def weights(i):
            logits = ops.einsum("bhqd,bhkd->bhqk", chunks.cut(padded, i), key)
            if ids is not None:
                logits = _mask_others(logits, (chunks.cut(of_queries, i), of_keys))
            return softmax_at_least_float32(logits)

        gradient = functools.partial(_gradient_in_chunks, chunks, weights, padded, key, value)
        _, parts = _scan(lambda carry, i: (carry, _weighted(weights(i), value)), [], chunks.count, value.dtype)
        parts = ops.transpose(parts, (1, 0, 2, 3, 4))  # (batch, chunks, size, heads, head_dim)
        rows = ops.reshape(parts, (-1, chunks.count * chunks.size, parts.shape[3], parts.shape[4]))
        return rows[:, : chunks.length], gradient

    return differentiable(query, key, value)


def _gradient_in_chunks(chunks, weights, padded, key, value, upstream):
    """Return the gradients for queries, keys and values; `upstream` is (batch, tokens, heads, head_dim)."""
    upstream = chunks.padded(ops.transpose(upstream, (0, 2, 1, 3)))

    def step(carry, i):
        share, slope = weights(i), chunks.cut(upstream, i)
        added_value = _transposed_product(ops.cast(share, value.dtype), slope)
        slope = ops.cast(ops.einsum("bhqd,bhkd->bhqk", slope, value), share.dtype)
        slope = share * (slope - ops.sum(share * slope, axis=-1, keepdims=True))  # of the logits
        slope = ops.cast(slope, key.dtype)
        added_key = _transposed_product(slope, chunks.cut(padded, i))
        carry = [ops.add(total, added) for total, added in zip(carry, (added_key, added_value), strict=True)]
        return carry, ops.matmul(slope, key)

    sums = [ops.zeros_like(x, dtype=at_least_float32(x.dtype)) for x in (key, value)]
    (of_key, of_value), parts = _scan(step, sums, chunks.count, key.dtype)
    parts = ops.transpose(parts, (1, 2, 0, 3, 4))  # (batch, heads, chunks, size, channels)
    of_query = ops.reshape(parts, (-1, key.shape[1], chunks.count * chunks.size, ops.shape(parts)[-1]))
    return of_query[:, :, : chunks.length], ops.cast(of_key, key.dtype), ops.cast(of_value, value.dtype)


class _Chunks:
    """Chunks of `size` queries (batch, heads, tokens, channels); a graph for any number of tokens has one for a few."""

    def __init__(self, query):
        self.batch, _, self.length, _ = ops.shape(query)
        count = -(-self.length // _CHUNK)
        self.count = count if isinstance(count, int) else ops.where(self.length <= _AT_ONCE, 1, count)
        self.size = -(-self.length // self.count)

    def padded(self, x):
        return ops.pad(x, ((0, 0), (0, 0), (0, self.count * self.size - self.length), (0, 0)))

    def cut(self, x, i):
        return ops.slice(x, (0, 0, i * self.size, 0), (self.batch, x.shape[1], self.size, ops.shape(x)[3]))


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


def _uses_kernel(x, shape, positions, dropout, with_scores):
    """Return whether cuDNN's kernel computes the attention for a shape, in the dtype of `x`.

    The shape is (tokens, width of a head's queries, width of its values).
    """
    tokens, width, head_dim = shape
    is_plain = dropout is None and not with_scores and positions.keys() <= {"rotary", "length"} and width == head_dim
    is_known = isinstance(tokens, int) and not keras.utils.is_keras_tensor(x)
    return is_plain and is_known and is_on_gpu() and _supports(keras.backend.standardize_dtype(x.dtype), head_dim)


@functools.cache
def _supports(dtype, width):
    import jax

    heads = jax.ShapeDtypeStruct((1, 2, 1, width), dtype)
    try:
        jax.eval_shape(functools.partial(_kernel, scale=1.0, length=2), heads, heads, heads)
    except (NotImplementedError, RuntimeError, ValueError):  # float32, another width, an older GPU, no cuDNN
        return False
    return True


def _by_kernel(query, key, value, scale, length):
    """Return softmax(scale q k^T) v of the first `length` keys, or of all; an odd number of tokens gets one more.

    (batch, heads, tokens, head_dim) -> (batch, tokens, heads, head_dim)
    """
    import jax

    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    tokens, run = query.shape[1], functools.partial(_kernel, scale=scale, length=length)
    if tokens % 2 == 0:
        return run(query, key, value)

    def with_one_more(*inputs):
        return _kernel(*map(_even, inputs), scale=scale, length=length or tokens)[:, :tokens]

    odd = jax.custom_vjp(lambda *inputs: run(*inputs))
    odd.defvjp(lambda *inputs: jax.vjp(with_one_more, *inputs), lambda backward, slopes: backward(slopes))
    return odd(query, key, value)


def _even(x, axis=1):
    """Return `x` with zeros appended along `axis` if its length is odd."""
    return ops.pad(x, [(0, x.shape[place] % 2 if place == axis % x.ndim else 0) for place in range(x.ndim)])


def _kernel(query, key, value, scale, length):
    import jax

    lengths = None if length is None else jax.numpy.full(len(query), length, "int32")
    return jax.nn.dot_product_attention(
        query, key, value, scale=scale, key_value_seq_lengths=lengths, implementation="cudnn"
    )
