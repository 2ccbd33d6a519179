"""Attention in chunks of queries equals attention at once: outputs, gradients, packed images, every way of tracing."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.compat import kernels
from keras_vit.layers import MultiHeadSelfAttention, attend

TENSORFLOW = keras.backend.backend() == "tensorflow"
LENGTH, CHUNK = 11, 4  # three chunks of four queries, of which the last has one of padding
IMAGES = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 2, -1, -1], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]], "int32")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(attend, "_CHUNK", CHUNK)
    monkeypatch.setattr(attend, "_AT_ONCE", LENGTH - 1)


def inputs(dtype="float32", length=LENGTH):
    """Query, key, value, and the slope of a loss in the outputs; keys have more channels than values."""
    rng = np.random.default_rng(0)
    shapes = (2, 3, length, 5), (2, 3, length, 5), (2, 3, length, 4), (2, length, 3, 4)
    return [ops.convert_to_tensor(rng.normal(size=shape), dtype=dtype) for shape in shapes]


def statement(query, key, value, slope, images=None):
    """Outputs and gradients for query, key and value in NumPy, in float64."""
    query, key, value, slope = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (query, key, value, slope))
    query, key, value = (x.astype("float64") for x in (query, key, value))
    logits = query @ key.swapaxes(2, 3)
    if images is not None:
        logits[np.broadcast_to((images[:, :, None] != images[:, None])[:, None], logits.shape)] = -np.inf
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    slope = slope.swapaxes(1, 2)
    of_shares = slope @ value.swapaxes(2, 3)
    of_logits = shares * (of_shares - (shares * of_shares).sum(axis=-1, keepdims=True))
    gradients = of_logits @ key, of_logits.swapaxes(2, 3) @ query, shares.swapaxes(2, 3) @ slope
    return (shares @ value).swapaxes(1, 2), *gradients


def with_gradients(query, key, value, slope, images=None, compiled=True, form=None):
    """What `statement` returns, by `attend`."""
    form = form or attend.attend
    images = None if images is None else ops.convert_to_tensor(images)

    if TENSORFLOW:
        import tensorflow as tf

        def both(query, key, value):
            with tf.GradientTape() as tape:
                tape.watch((query, key, value))
                outputs = form(query, key, value, images)
            return outputs, *tape.gradient(outputs, (query, key, value), slope)

        both = tf.function(both, autograph=False, **compiled) if isinstance(compiled, dict) else both
    else:
        import jax

        def both(query, key, value):
            outputs, pull = jax.vjp(lambda *parts: form(*parts, images), query, key, value)
            return outputs, *pull(slope)

        both = jax.jit(both) if compiled is not False else both
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in both(query, key, value)]


EAGER, GRAPH, XLA, ANY_LENGTH = False, {}, {"jit_compile": True}, {"reduce_retracing": True}


@pytest.mark.parametrize("compiled", [EAGER, GRAPH, XLA], ids=str)
@pytest.mark.parametrize("images", [None, IMAGES], ids=["whole", "packed"])
def test_outputs_and_gradients(images, compiled):
    arguments = inputs()
    for found, expected in zip(
        with_gradients(*arguments, images, compiled), statement(*arguments, images), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
