"""cuDNN's attention on JAX. There is no GPU: XLA's form stands in for the kernel, with the kernel's conditions."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.config import BlockConfig, RotaryConfig
from keras_vit.layers import MultiHeadSelfAttention, PatchEncoder
from keras_vit.layers import attend as module
from keras_vit.layers.rotary import RotaryEmbedding

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="the kernel is JAX's")
DIM, HEADS, GRID = 32, 2, (2, 4)
ROTARY = RotaryConfig(kind="dinov3")
LAYERS = {
    "plain": {},
    "no biases": {"qkv_bias": False},
    "two biases": {"block": BlockConfig(key_bias=False)},
    "query and key norms": {"qk_norm": True},
    "output norm": {"block": BlockConfig(attention_norm=True)},
    "rotary": {"block": BlockConfig(rotary=ROTARY)},
}


@pytest.fixture
def calls(monkeypatch):
    """List of the number of tokens, and whether only some keys count, of each call of the kernel."""
    import jax

    calls, real = [], jax.nn.dot_product_attention

    def forward(query):
        if query.shape[1] % 2:
            raise NotImplementedError("Unsupported sequence length")
        return query, None

    even = jax.custom_vjp(lambda query: query)
    even.defvjp(forward, lambda _, slope: (slope,))

    def kernel(query, key, value, *, scale, key_value_seq_lengths, implementation):
        assert implementation == "cudnn"
        if query.dtype not in ("bfloat16", "float16") or query.shape[-1] % 8:
            raise NotImplementedError("Q must be fp16/bf16")
        calls.append((query.shape[1], key_value_seq_lengths is not None))
        return real(even(query), key, value, scale=scale, key_value_seq_lengths=key_value_seq_lengths)

    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.setattr("jax.nn.dot_product_attention", kernel)
    module._supports.cache_clear()
    yield calls
    module._supports.cache_clear()


def outputs_and_gradients(layer, tokens, training, **given):
    import jax

    values = [variable.value for variable in layer.trainable_variables]

    def loss(tokens, values):
        with keras.StatelessScope(zip(layer.trainable_variables, values, strict=True)):
            outputs = layer(tokens, training=training, **given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        slopes = np.random.default_rng(2)
        return sum(ops.sum(ops.cast(x, "float32") * slopes.normal(size=x.shape)) for x in outputs), outputs

    gradients, outputs = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(tokens, values)
    return [np.asarray(ops.cast(x, "float32")) for x in keras.tree.flatten((outputs, gradients))]


def layer_and_tokens(kwargs, length, dtype, randomise):
    keras.utils.set_random_seed(0)
    layer = MultiHeadSelfAttention(HEADS, dtype=dtype, **kwargs)
    tokens = np.random.default_rng(1).normal(size=(2, length, DIM)).astype("float32")
    layer.build(tokens.shape)
    randomise(layer)
    return layer, ops.convert_to_tensor(tokens, keras.DTypePolicy(dtype).compute_dtype)


@pytest.mark.parametrize("kwargs", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("length", [8, 9])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients(kwargs, length, training, calls, randomise, monkeypatch):
    """They equal those of XLA's form; in training an odd number of tokens becomes even inside the layer."""
    layer, tokens = layer_and_tokens(kwargs, length, "mixed_bfloat16", randomise)
    given = {"return_keys": True}
    if layer.block.rotary:
        given["positions"] = {"rotary": RotaryEmbedding(ROTARY, HEADS, GRID, length - 8)(tokens)}
    found = outputs_and_gradients(layer, tokens, training, **given)
    assert calls and {tokens for tokens, _ in calls[1:]} == {length + length % 2}
    assert all(is_partial == bool(length % 2) for _, is_partial in calls[1:])
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    for flash, plain in zip(found, outputs_and_gradients(layer, tokens, training, **given), strict=True):
        np.testing.assert_allclose(flash, plain, atol=0.03 * np.abs(plain).max())


def test_without_a_gradient_nothing_is_added(calls, randomise):
    layer, tokens = layer_and_tokens({}, 9, "bfloat16", randomise)
    layer(tokens)
    assert calls[1:] == [(9, False)]


@pytest.mark.parametrize(
    ("dtype", "kwargs", "given"),
    [
        ("float32", {}, {}),
        ("bfloat16", {}, {"return_attention_scores": True}),
        ("bfloat16", {}, {"positions": {"attention_bias": np.zeros((HEADS, 8, 8), "float32")}}),
        ("bfloat16", {}, {"positions": {"key_sizes": np.ones((2, 1, 1, 8), "int32")}}),
        ("bfloat16", {}, {"positions": {"sequence_ids": np.zeros((2, 8), "int32")}}),
        ("bfloat16", {"dropout_rate": 0.5}, {"training": True}),
    ],
    ids=["float32", "scores", "bias", "key sizes", "packed images", "dropout"],
)
def test_other_calls_do_not_use_the_kernel(dtype, kwargs, given, calls, randomise):
    layer, tokens = layer_and_tokens(kwargs, 8, dtype, randomise)
    layer(tokens, **given)
    assert not calls[1:]  # the first one may be that of `_supports`


def test_a_width_that_the_kernel_does_not_support(calls):
    layer = MultiHeadSelfAttention(HEADS, dtype="bfloat16")
    layer(np.ones((1, 4, 24), "float32"))
    assert not calls


def test_without_a_gpu_there_is_no_kernel():
    assert not module._uses_kernel(ops.ones((2, 8, DIM), "bfloat16"), (8, 16, 16), {}, None, False)


def test_patches_are_projected_by_a_product(calls, randomise, monkeypatch):
    layer = PatchEncoder((2, 4), 8)
    images = np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype("float32")
    layer.build(images.shape)
    randomise(layer)
    product, convolution = layer(images), layer(images, training=True)
    np.testing.assert_allclose(product, convolution, atol=1e-5)
    monkeypatch.setattr(layer.projection, "call", None)
    layer(images)


@pytest.mark.parametrize("length", [8, 9])
def test_the_backward_pass_of_jax_needs_an_even_number_of_tokens(length, monkeypatch):
    """JAX's own checks, for a GPU that is not there; if 9 tokens pass, `with_even_length` can go."""
    import jax

    checks = "jax._src.cudnn.fused_attention_stablehlo"
    monkeypatch.setattr(f"{checks}.check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(f"{checks}.check_compute_capability", lambda _: True)
    heads = jax.ShapeDtypeStruct((1, length, 1, 16), "bfloat16")

    def gradients(*heads):
        return jax.vjp(lambda *x: module._kernel(*x, scale=1.0, length=None), *heads)[1](heads[0])

    if length == 8:
        assert [x.shape for x in jax.eval_shape(gradients, heads, heads, heads)] == [heads.shape] * 3
    else:
        with pytest.raises(NotImplementedError, match="sequence length"):
            jax.eval_shape(gradients, heads, heads, heads)
