"""TransformerBlock: Eqs. 2 and 3 with LayerScale, and where dropout and stochastic depth stand."""

import contract
import keras
import numpy as np
import onevit
import pytest
from faults import for_each
from slow_rows import slow_after

from keras_vit.config import BlockConfig
from keras_vit.layers import TransformerBlock
from keras_vit.layers.position_bias import AttentionBias
from keras_vit.layers.rotary import RotaryEmbedding

GRID, HEADS = (2, 3), 2
# `block` of the layer and its other arguments; the last rows are those of whole families
SWITCHES = {
    "post_norm": ({"order": "post_norm"}, {}),
    "post_norm with LayerScale": ({"order": "post_norm", "norm": "rms"}, {"layer_scale_init": 0.1}),
    "parallel": ({"order": "parallel"}, {"gelu": "erf"}),
    "rms": ({"norm": "rms"}, {"epsilon": 1e-3}),
    "gated": ({"gated": True}, {"layer_scale_init": 0.1}),
    "no bias": ({"bias": False}, {}),
    "no bias of keys": ({"key_bias": False}, {}),
    "attention_norm": ({"attention_norm": True}, {"epsilon": 1e-3}),
    "mlp_norm": ({"mlp_norm": True}, {"epsilon": 1e-3}),
    "CLIP": ({}, {"gelu": "quick", "epsilon": 1e-5}),
    "BEiT": ({"key_bias": False}, {"layer_scale_init": 0.1, "gelu": "erf"}),
    "EVA-02": ({"gated": True, "key_bias": False, "mlp_norm": True, "rotary": {"kind": "eva02"}}, {}),
    "EVA-02-CLIP": (
        {"gated": True, "key_bias": False, "mlp_norm": True, "attention_norm": True, "rotary": {"kind": "eva02"}},
        {},
    ),
    "DINOv3": (
        {"gated": True, "key_bias": False, "rotary": {"kind": "dinov3"}},
        {"layer_scale_init": 0.1, "epsilon": 1e-5},
    ),
    "PE": ({"rotary": {"kind": "pe"}}, {"gelu": "erf", "epsilon": 1e-5, "layer_scale_init": 0.1}),
    "AIMv2": ({"norm": "rms", "gated": True, "bias": False}, {"qkv_bias": False, "epsilon": 1e-5}),
    "ViT-22B": ({"order": "parallel"}, {"qkv_bias": False, "qk_norm": True}),
}
every_switch = pytest.mark.parametrize("name", SWITCHES)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"gelu": "tanh"},
        {"gelu": "erf", "epsilon": 1e-3},
        {"gelu": "tanh", "layer_scale_init": 0.1},
        {"gelu": "erf", "qk_norm": True, "qkv_bias": False, "epsilon": 1e-3},
    ],
)
def test_values(kwargs, reference, randomise):
    block, tokens = TransformerBlock(2, 12, **kwargs), _tokens(2)
    block.build(tokens.shape)
    weights = randomise(block, scale=0.3)
    output = _call(block, tokens)
    scores = keras.ops.convert_to_numpy(block.attention_scores(tokens))
    for sample in range(2):
        expected, expected_scores = _block(reference, tokens[sample].astype("float64"), weights, **kwargs)
        np.testing.assert_allclose(output[sample], expected, atol=2e-5)
        np.testing.assert_allclose(scores[sample], expected_scores, atol=1e-6)


def _block(reference, tokens, weights, gelu, epsilon=1e-6, qkv_bias=True, qk_norm=False, layer_scale_init=None):
    def pair(name, *kinds):
        return [weights[f"{name}/{kind}"] for kind in kinds]

    fused = (
        weights["attention/qkv/kernel"],
        weights.get("attention/qkv/bias", np.zeros(24)),
    )
    norms = [pair(f"attention/{n}_norm", "gamma", "beta") for n in ("query", "key")] if qk_norm else None
    projection = pair("attention/proj", "kernel", "bias")
    scale1, scale2 = (weights[f"layer_scale{i}/gamma"] if layer_scale_init else 1.0 for i in (1, 2))
    normed = reference.layer_norm(tokens, *pair("norm1", "gamma", "beta"), epsilon)
    branch, scores = reference.self_attention(normed, 2, fused, projection, norms, epsilon)
    tokens = tokens + scale1 * branch
    normed = reference.layer_norm(tokens, *pair("norm2", "gamma", "beta"), epsilon)
    mlp = pair("mlp/dense1", "kernel", "bias") + pair("mlp/dense2", "kernel", "bias")
    return tokens + scale2 * reference.mlp(normed, *mlp, gelu), scores


def _switched(name, **more):
    """A block of `SWITCHES`, tokens for it, and its further inputs."""
    parts, kwargs = SWITCHES[name]
    block = TransformerBlock(HEADS, 12, block=BlockConfig(**parts), **kwargs, **more)
    tokens = np.random.default_rng(1).normal(size=(2, 7, 16)).astype("float32")
    given = {}
    if name == "BEiT":
        given["attention_bias"] = AttentionBias(GRID, HEADS, name="attention_bias", dtype=block.dtype_policy)
        given["attention_bias"].build(tokens.shape)
        table = np.random.default_rng(3).normal(size=given["attention_bias"].embedding.shape)
        given["attention_bias"].embedding.assign(table)
    if block.block.rotary is not None:
        given["rotary"] = RotaryEmbedding(block.block.rotary, HEADS, GRID, dtype=block.dtype_policy)
    return block, tokens, given


@every_switch
def test_switches_of_the_block(name, randomise):
    block, tokens, layers = _switched(name)
    block.build(tokens.shape)
    weights = onevit.of_block(randomise(block, scale=0.3), block.block.gated)
    settings = {"heads": HEADS, "eps": block.epsilon, "act": block.gelu, "norm": block.block.norm}
    settings |= {"order": block.block.order, "grid": GRID, "prefix": 1}
    angles = None
    if "attention_bias" in layers:
        weights["table"] = keras.ops.convert_to_numpy(layers["attention_bias"].embedding)
    if "rotary" in layers:
        settings["rope"] = kind = block.block.rotary.kind
        angles = onevit.rope_table(kind, *GRID, 8, offset=float(kind == "pe"))
    given = {"positions": {name: layer(tokens) for name, layer in layers.items()}}
    expected = onevit.block(tokens.astype("float64"), weights, settings, angles)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(block(tokens, **given)), expected, atol=2e-5)


@every_switch
def test_scores_are_those_of_the_call(name, randomise, monkeypatch):
    block, tokens, layers = _switched(name)
    block.build(tokens.shape)
    randomise(block)
    given = {"positions": {name: layer(tokens) for name, layer in layers.items()}}
    scores = keras.ops.convert_to_numpy(block.attention_scores(tokens, **given))
    assert scores.shape == (2, HEADS, 7, 7)
    np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-5)
    seen, attend = [], block.attention.call

    def call(*args, **kwargs):
        output, weights = attend(*args, **kwargs, return_attention_scores=True)
        seen.append(weights)
        return output

    monkeypatch.setattr(block.attention, "call", call)
    block(tokens, **given)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(seen[0]), scores, atol=1e-6)


def test_parallel_block_has_one_norm():
    block = TransformerBlock(2, 12, block=BlockConfig(order="parallel"))
    block.build((None, 5, 8))
    names = {weight.path.split("/")[-2] for weight in block.weights}
    assert names == {"norm1", "qkv", "proj", "dense1", "dense2"}


@every_switch
@pytest.mark.parametrize("policy", slow_after(1, ["mixed_float16", "mixed_bfloat16"]))
def test_switches_in_mixed_precision(name, policy, randomise):
    block, tokens, layers = _switched(name, dtype=policy)
    block.build(tokens.shape)
    randomise(block)
    output = block(tokens, {name: layer(tokens) for name, layer in layers.items()})
    assert keras.backend.standardize_dtype(output.dtype) == block.compute_dtype
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))).all()


class InTraining(keras.layers.Layer):
    """Calls a block in training, with the layers of its positions."""

    def __init__(self, block, positions):
        super().__init__()
        self.block, self.names, self.positions = block, list(positions), list(positions.values())

    def call(self, tokens):
        given = {name: layer(tokens) for name, layer in zip(self.names, self.positions, strict=True)}
        return self.block(tokens, given, training=True)


@pytest.mark.parametrize("name", slow_after(3, SWITCHES))
def test_recomputed_block_has_the_same_gradients(name, randomise):
    gradients = []
    for remat in (None, "attention", "block"):
        block, tokens, layers = _switched(name, remat=remat)
        block.build(tokens.shape)
        randomise(block, scale=0.3)
        layer = InTraining(block, layers)
        layer(tokens)
        cotangent = np.random.default_rng(2).normal(size=tokens.shape).astype("float32")
        found = contract._GRADIENTS[keras.backend.backend()](layer, tokens, cotangent)
        paths = ["/".join(weight.path.split("/")[-2:]) for weight in layer.trainable_weights]
        gradients.append({path: keras.ops.convert_to_numpy(g) for path, g in zip(paths, found, strict=True)})
    plain, *others = gradients
    largest = max(np.abs(gradient).max() for gradient in plain.values())
    for recomputed in others:
        assert plain.keys() == recomputed.keys()
        for path, gradient in plain.items():
            assert np.abs(gradient).max() > 0, path
            np.testing.assert_allclose(recomputed[path], gradient, atol=2e-6 * largest, err_msg=path)


def test_stochastic_depth_drops_either_branch_of_a_sample():
    block, tokens = TransformerBlock(2, 12, drop_path_rate=0.5), np.zeros((400, 5, 8), "float32")
    _branches_that_add(block, tokens.shape, attention=1.0, mlp=10.0)
    output = _call(block, tokens, training=True)
    np.testing.assert_array_equal(output, np.broadcast_to(output[:, :1, :1], output.shape))  # whole samples
    values, counts = np.unique(output[:, 0, 0], return_counts=True)
    assert values.tolist() == [0.0, 2.0, 20.0, 22.0]  # the branches are drawn apart, what is kept is doubled
    assert (counts > 60).all()


def test_dropout_stands_on_attention_output_and_mlp_output():
    block, tokens = TransformerBlock(2, 12, dropout_rate=0.5), np.zeros((50, 5, 8), "float32")
    _branches_that_add(block, tokens.shape, attention=1.0, mlp=10.0)
    output = _call(block, tokens, training=True)
    values, counts = np.unique(output, return_counts=True)
    assert values.tolist() == [0.0, 2.0, 20.0, 22.0]
    assert counts / output.size == pytest.approx(0.25, abs=0.05)


def test_attention_dropout_reaches_the_attention_alone():
    block = TransformerBlock(2, 12, attention_dropout_rate=0.5)
    assert (block.attention.dropout_rate, block.mlp.dropout_rate, block.dropout.rate) == (0.5, 0.0, 0.0)


def test_layer_scale_stands_on_both_branches_before_the_sum():
    block, tokens = TransformerBlock(2, 12, layer_scale_init=0.25), np.zeros((1, 5, 8), "float32")
    _branches_that_add(block, tokens.shape, attention=1.0, mlp=10.0)
    np.testing.assert_array_equal(_call(block, tokens), np.full((1, 5, 8), 2.75))


def test_block_without_layer_scale_has_no_such_weight():
    block = TransformerBlock(2, 12)
    block.build((None, 5, 8))
    assert not [weight.path for weight in block.weights if "layer_scale" in weight.path]


@for_each(
    ("kwargs", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"mlp_dim": 1.5}, "mlp_dim must be an integer of at least 1; got mlp_dim=1.5"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\); got dropout_rate=1.0"),
        (
            {"attention_dropout_rate": -1},
            r"attention_dropout_rate must be a number in \[0, 1\); got attention_dropout_rate=-1",
        ),
        (
            {"drop_path_rate": 1.0},
            r"drop_path_rate must be a number in \[0, 1\); got drop_path_rate=1.0",
        ),
        (
            {"layer_scale_init": -1.0},
            "layer_scale_init must be a finite number above 0; got layer_scale_init=-1.0",
        ),
        ({"gelu": "exact"}, "gelu must be one of 'tanh', 'erf', 'quick'; got gelu='exact'"),
        ({"block": {"order": "sandwich"}}, "order must be one of 'pre_norm', 'post_norm', 'parallel'; got order='san"),
        ({"block": {"gatd": True}}, r"BlockConfig keys must be among .* got 'gatd' \(did you mean 'gated'\?\)"),
        ({"remat": 1}, "remat must be one of 'attention', 'block'; got remat=1"),
        ({"epsilon": "small"}, "epsilon must be a finite number above 0; got epsilon='small'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TransformerBlock(**{"num_heads": 2, "mlp_dim": 12, **kwargs})


@pytest.mark.parametrize("window", [None, {"size": 2}])
def test_unknown_positions_are_refused(window):
    block, tokens = TransformerBlock(2, 12, window=window, grid_size=(2, 2)), np.zeros((1, 4, 8), "float32")
    known = "grid; " if window else "relative_keys, attention_bias, key_sizes, sequence_ids, rotary, "
    known = f"positions must be None or a dict of tensors with names among {known}"
    for positions, got in (({"images": np.zeros((1, 4), "int32")}, r"\['images'\]"), (tokens, ".*(Tensor|Array)")):
        with pytest.raises(ValueError, match=f"{known}.*got {got}"):
            block(tokens, positions)


def _branches_that_add(block, shape, attention, mlp):
    """Makes the branches constants: the biases that end them, all kernels zero."""
    block.build(shape)
    for weight in block.weights:
        if weight.path.endswith(("kernel", "bias")):
            weight.assign(np.zeros(weight.shape))
    block.attention.proj.bias.assign(np.full(8, attention))
    block.mlp.dense2.bias.assign(np.full(8, mlp))


def _tokens(size):
    return np.random.default_rng(1).normal(size=(size, 5, 8)).astype("float32")


def _call(block, tokens, training=False):
    return keras.ops.convert_to_numpy(block(tokens, training=training))
