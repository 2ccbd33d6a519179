"""Attention in chunks of queries equals attention at once: outputs, gradients, packed images, every way of tracing."""

import contextlib
import re
from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops
from slow_rows import slow_after

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.layers import MultiHeadSelfAttention, attend, forms

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


def statement(query, key, value, slope, ids=None):
    """Outputs and gradients for query, key and value in NumPy, in float64."""
    query, key, value, slope = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (query, key, value, slope))
    query, key, value = (x.astype("float64") for x in (query, key, value))
    query = query / np.sqrt(value.shape[-1])
    logits = query @ key.swapaxes(2, 3)
    if ids is not None:
        logits[np.broadcast_to((ids[:, :, None] != ids[:, None])[:, None], logits.shape)] = -np.inf
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    slope = slope.swapaxes(1, 2)
    of_shares = slope @ value.swapaxes(2, 3)
    of_logits = shares * (of_shares - (shares * of_shares).sum(axis=-1, keepdims=True))
    gradients = (
        of_logits @ key / np.sqrt(value.shape[-1]),
        of_logits.swapaxes(2, 3) @ query,
        shares.swapaxes(2, 3) @ slope,
    )
    return (shares @ value).swapaxes(1, 2), *gradients


def both_ways(ids=None, slope=None, at_once=False):
    """A function from query, key and value to what `statement` returns."""

    def outputs(query, key, value):
        positions = None if ids is None else {"sequence_ids": ops.convert_to_tensor(ids)}
        with mock.patch.object(attend, "_is_at_once", lambda _: True) if at_once else contextlib.nullcontext():
            return attend.attend(query, key, value, positions)

    if TENSORFLOW:
        import tensorflow as tf

        def run(*parts):
            with tf.GradientTape() as tape:
                tape.watch(parts)
                found = outputs(*parts)
            return found, *tape.gradient(found, parts, slope)
    else:
        import jax

        def run(*parts):
            found, pull = jax.vjp(outputs, *parts)
            return found, *pull(slope)

    return run


def compile_for(run, parts, how):
    """The function as it is, or traced: in a graph, by XLA, or (on TensorFlow) for any number of images and tokens."""
    if how == "eager":
        return run
    if not TENSORFLOW:
        import jax

        return jax.jit(run)
    import tensorflow as tf

    # the channels of query and key include those of decomposed positions, whose number is that of rows and columns
    channels = None, None, parts[2].shape[3]
    any_size = [tf.TensorSpec((None, x.shape[1], None, c), x.dtype) for x, c in zip(parts, channels, strict=True)]
    return tf.function(run, any_size if "any size" in how else None, autograph=False, jit_compile="xla" in how)


def check(found, expected, atol):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(one, "float32")), other, atol=atol)


@pytest.mark.parametrize("how", slow_after(3, ["graph", "xla", "any size", "eager", "any size, xla"]))
@pytest.mark.parametrize("sequence_ids", [None, IMAGES], ids=["one image", "packed"])
def test_outputs_and_gradients(sequence_ids, how):
    *parts, slope = inputs()
    expected = statement(*parts, slope, sequence_ids)
    check(compile_for(both_ways(sequence_ids, slope), parts, how)(*parts), expected, 1e-5)


@pytest.mark.parametrize("length", slow_after(2, [3, 10, 8, 12]))
def test_any_number_of_tokens_in_one_graph(length):
    """A few tokens are one chunk."""
    *parts, slope = inputs(length=length)
    expected = statement(*parts, slope)
    check(compile_for(both_ways(None, slope), parts, "any size")(*parts), expected, 1e-5)


@pytest.mark.parametrize(("dtype", "atol"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_16_bit(dtype, atol):
    """The gradients of keys and values are sums over the chunks in float32."""
    *parts, slope = inputs(dtype)
    found = compile_for(both_ways(IMAGES, slope), parts, "graph")(*parts)
    assert {keras.backend.standardize_dtype(x.dtype) for x in found} == {dtype}
    check(found, statement(*parts, slope, IMAGES), atol)
    at_once = compile_for(both_ways(IMAGES, slope, at_once=True), parts, "graph")(*parts)
    check(found, [ops.convert_to_numpy(ops.cast(x, "float32")) for x in at_once], atol)


def shapes_in(run, parts):
    """The shapes of all tensors that a traced function computes."""
    if not TENSORFLOW:
        import jax

        return {
            tuple(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", str(jax.make_jaxpr(run)(*parts)))
        }
    import tensorflow as tf

    graph = tf.function(run, autograph=False).get_concrete_function(*parts).graph
    graphs = [graph, *(function.graph for function in _functions(graph))]
    tensors = [tensor for each in graphs for operation in each.get_operations() for tensor in operation.outputs]
    return {tuple(tensor.shape) for tensor in tensors if tensor.shape.rank}


def _functions(graph):
    """The functions of a graph, such as the bodies of its loops."""
    return graph._functions.values()


@pytest.mark.parametrize("sequence_ids", [None, IMAGES], ids=["one image", "packed"])
def test_no_tensor_has_tokens_times_tokens(sequence_ids):
    """Neither logits nor masks, in both passes."""
    *parts, slope = inputs()
    assert (2, 3, LENGTH, LENGTH) in shapes_in(both_ways(sequence_ids, slope, at_once=True), parts)
    shapes = shapes_in(both_ways(sequence_ids, slope), parts)
    assert (2, 3, CHUNK, LENGTH) in shapes
    assert not [shape for shape in shapes if len([side for side in shape if side >= LENGTH]) > 1]


@pytest.fixture
def in_chunks(monkeypatch):
    """List of the numbers of tokens that were computed in chunks."""
    calls, real = [], attend._in_chunks

    def record(query, *others):
        calls.append(query.shape[2])
        return real(query, *others)

    monkeypatch.setattr(attend, "_in_chunks", record)
    return calls


def test_the_form_follows_from_the_call(in_chunks, monkeypatch):
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    tokens = np.random.default_rng(1).normal(size=(2, LENGTH, 8)).astype("float32")
    layer(tokens[:, :-1])
    layer(tokens, training=True)
    layer(tokens, return_attention_scores=True)
    layer(tokens, {"attention_bias": np.zeros((2, LENGTH, LENGTH), "float32")})
    layer(tokens, {"relative_keys": np.zeros((2 * LENGTH - 1, 4), "float32")})
    layer(tokens, {"key_sizes": np.ones((2, 1, 1, LENGTH), "int32")})
    layer(keras.Input((LENGTH, 8)))
    layer.call(keras.Input((LENGTH, 8)))
    if TENSORFLOW:
        with forms.written_for(forms.CONVERTER):
            layer(tokens)
    assert not in_chunks
    layer(tokens)
    layer(tokens, {"sequence_ids": np.zeros((2, LENGTH), "int32")}, return_keys=True)
    assert in_chunks == [LENGTH, LENGTH]


@pytest.mark.parametrize("kwargs", [{}, {"return_attention_scores": True}, {"training": True}], ids=str)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_token_attends_only_to_its_image(kwargs, at_once, randomise, monkeypatch):
    """A packed sequence has the outputs of its images; padding, and other images, change nothing."""
    monkeypatch.setattr(attend, "_AT_ONCE", LENGTH if at_once else 0)
    layer = MultiHeadSelfAttention(2, block=None, qk_norm=True)
    tokens = np.random.default_rng(1).normal(size=(2, LENGTH, 8)).astype("float32")
    layer.build(tokens.shape)
    randomise(layer)
    found = layer(tokens, {"sequence_ids": IMAGES}, **kwargs)
    found = ops.convert_to_numpy(found[0] if isinstance(found, tuple) else found)
    for row, images in enumerate(IMAGES):
        for image in set(images):
            alone = ops.convert_to_numpy(layer(tokens[row : row + 1, images == image]))
            np.testing.assert_allclose(found[row, images == image], alone[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("remat", "policy"),
    [("block", "float32"), (None, "float32"), ("attention", "mixed_bfloat16"), (None, "mixed_bfloat16")],
)
def test_training_steps(remat, policy, monkeypatch):
    """Two steps of `fit` change the weights as they do without chunks."""
    config = ViTConfig(
        name="toy", image_size=8, patch_size=2, hidden_dim=8, num_layers=2, num_heads=2, mlp_dim=8, classes=3
    )
    images, labels = np.random.default_rng(1).normal(size=(4, 8, 8, 3)).astype("float32"), np.arange(4) % 3
    weights = []
    for at_once in (0, 17):
        monkeypatch.setattr(attend, "_AT_ONCE", at_once)
        keras.utils.set_random_seed(0)
        model = VisionTransformer(config.replace(remat=remat, dtype=policy))
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(images, labels, batch_size=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for chunked, whole in zip(*weights, strict=True):
        np.testing.assert_allclose(chunked, whole, atol=1e-5 if policy == "float32" else 5e-3)


@pytest.mark.skipif(not TENSORFLOW, reason="oneDNN is TensorFlow's")
@pytest.mark.parametrize("is_exact", [True, False])
def test_softmax_in_bfloat16_is_used_where_it_is_exact(is_exact, monkeypatch):
    import tensorflow as tf

    query, key, value, _ = inputs("bfloat16", length=LENGTH - 1)
    expected = attend.attend(query, key, value)
    if not is_exact:
        monkeypatch.setattr(attend, "_has_exact_softmax", lambda: False)
    elif not attend._has_exact_softmax():
        pytest.skip("TensorFlow's softmax is not exact to bfloat16 on this processor")
    forward = tf.function(attend.attend, autograph=False)
    with forms.written_for(forms.ONEDNN):
        graph = forward.get_concrete_function(query, key, value)
    np.testing.assert_array_equal(ops.cast(graph(query, key, value), "float32"), ops.cast(expected, "float32"))
    assert ("Cast" in {operation.type for operation in graph.graph.get_operations()}) != is_exact
