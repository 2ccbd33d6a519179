"""Attention by cuDNN's kernel, which JAX calls on an NVIDIA GPU for 16-bit tensors.

Delete what makes an odd number of tokens even when JAX's backward pass takes odd numbers (a test fails then), and the
rest when Keras's `dot_product_attention` also does: Keras 3.15 silently stores all logits instead.
"""

import functools

import keras
from keras import ops


def is_on_gpu():
    """Return whether JAX computes on a GPU."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


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
