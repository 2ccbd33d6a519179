"""AxialTransformerBlock: which tokens see which, what its two blocks compute, and how its attention grows."""

import keras
import numpy as np
import pytest
from faults import for_each
from slow_rows import slow_after

from keras_vit.layers import AxialTransformerBlock, TransformerBlock, attend

GRID, DIM = (3, 4), 8

EVERYTHING = {
    "layer_scale_init": 0.1,
    "qkv_bias": False,
    "qk_norm": True,
    "gelu": "erf",
    "epsilon": 1e-3,
}


@pytest.mark.parametrize("grid", [(3, 4), *slow_after(0, [[(4, 2)], [(1, 3)], [(3, 1)]])])
@pytest.mark.parametrize("kwargs", [{}, EVERYTHING], ids=["default", "everything"])
def test_is_one_block_for_each_row_then_another_for_each_column(grid, kwargs, randomise):
    block = AxialTransformerBlock(grid, 2, 12, **kwargs)
    tokens = _tokens(grid)
    block.build(tokens.shape)
    randomise(block)
    parts = []
    for name, length in (("row_block", grid[1]), ("column_block", grid[0])):
        part = TransformerBlock(2, 12, **kwargs)
        part.build((None, length, DIM))
        part.set_weights(getattr(block, name).get_weights())
        parts.append(part)
    expected = tokens.reshape(2, *grid, DIM).copy()
    for row in range(grid[0]):
        expected[:, row] = _call(parts[0], expected[:, row])
    for column in range(grid[1]):
        expected[:, :, column] = _call(parts[1], expected[:, :, column])
    np.testing.assert_allclose(_call(block, tokens), expected.reshape(tokens.shape), atol=1e-4)


def test_after_the_row_block_a_token_has_changed_exactly_its_row_and_after_both_every_token(randomise):
    tokens = _tokens(GRID)
    changed = tokens.copy()
    changed[0, 1 * GRID[1] + 2, 0] += 1.0  # one channel, for the norm takes out what all share; row 1, column 2
    block = AxialTransformerBlock(GRID, 2, 12)
    block.build(tokens.shape)
    randomise(block)
    both = np.any(_call(block, tokens) != _call(block, changed), axis=-1)
    assert both[0].all() and not both[1].any()
    _make_identity(block.column_block)
    row_alone = np.any(_call(block, tokens) != _call(block, changed), axis=-1).reshape(2, *GRID)
    expected = np.zeros((2, *GRID), bool)
    expected[0, 1] = True
    np.testing.assert_array_equal(row_alone, expected)


def test_the_column_block_alone_changes_exactly_the_column(randomise):
    tokens = _tokens(GRID)
    changed = tokens.copy()
    changed[0, 1 * GRID[1] + 2, 0] += 1.0
    block = AxialTransformerBlock(GRID, 2, 12)
    block.build(tokens.shape)
    randomise(block)
    _make_identity(block.row_block)
    column_alone = np.any(_call(block, tokens) != _call(block, changed), axis=-1).reshape(2, *GRID)
    expected = np.zeros((2, *GRID), bool)
    expected[0, :, 2] = True
    np.testing.assert_array_equal(column_alone, expected)


def test_on_a_grid_of_one_row_the_column_block_attends_to_each_token_alone(reference, randomise):
    block, tokens = AxialTransformerBlock((1, 5), 2, 12), _tokens((1, 5))
    block.build(tokens.shape)
    weights = randomise(block, scale=0.3)
    # With one key the softmax is 1, so that attention gives the projected values, whatever queries and keys are.
    x = _call(block.row_block, tokens).astype("float64")
    part = {path.removeprefix("column_block/"): value for path, value in weights.items() if "column_block" in path}
    normed = reference.layer_norm(x, part["norm1/gamma"], part["norm1/beta"], 1e-6)
    fused = normed @ part["attention/qkv/kernel"] + part["attention/qkv/bias"]
    value = fused[..., 2 * DIM :]
    x = x + value @ part["attention/proj/kernel"] + part["attention/proj/bias"]
    normed = reference.layer_norm(x, part["norm2/gamma"], part["norm2/beta"], 1e-6)
    mlp = [part[f"mlp/dense{i}/{kind}"] for i in (1, 2) for kind in ("kernel", "bias")]
    expected = x + reference.mlp(normed, *mlp, "tanh")
    np.testing.assert_allclose(_call(block, tokens), expected, atol=2e-5)
    np.testing.assert_array_equal(_numpy(block.attention_scores(tokens)[1]), np.ones((2, 5, 2, 1, 1)))


def test_attention_grows_with_the_number_of_tokens_to_the_power_of_1_5_instead_of_2(monkeypatch):
    """Every tensor that goes through a softmax at 112, 224 and 448 pixels with patches of 16: the attention weights."""
    softmax, sizes = attend.softmax_at_least_float32, []

    def count(logits):
        sizes.append(int(np.prod(logits.shape)))
        return softmax(logits)

    monkeypatch.setattr(attend, "softmax_at_least_float32", count)
    counts = {"axial": [], "global": []}
    for pixels in (112, 224, 448):
        side = pixels // 16
        tokens = np.zeros((1, side * side, 2), "float32")
        for name, layer in (
            ("axial", AxialTransformerBlock(side, 1, 2)),
            ("global", TransformerBlock(1, 2)),
        ):
            layer(tokens)
            counts[name].append(sum(sizes))
            sizes.clear()
    assert counts == {"axial": [2 * 7**3, 2 * 14**3, 2 * 28**3], "global": [7**4, 14**4, 28**4]}
    num_tokens = np.array([49, 196, 784])
    assert np.polyfit(np.log(num_tokens), np.log(counts["axial"]), 1)[0] == pytest.approx(1.5)
    assert np.polyfit(np.log(num_tokens), np.log(counts["global"]), 1)[0] == pytest.approx(2.0)


def test_attention_scores_are_those_of_both_blocks_row_by_row_and_column_by_column(randomise):
    block, tokens = AxialTransformerBlock(GRID, 2, 12), _tokens(GRID)
    block.build(tokens.shape)
    randomise(block)
    row_scores, column_scores = (_numpy(scores) for scores in block.attention_scores(tokens))
    assert row_scores.shape == (2, 3, 2, 4, 4) and column_scores.shape == (2, 4, 2, 3, 3)
    grid = tokens.reshape(2, *GRID, DIM)
    after_rows = np.stack([_call(block.row_block, grid[:, row]) for row in range(GRID[0])], axis=1)
    for row in range(GRID[0]):
        expected = _numpy(block.row_block.attention_scores(grid[:, row]))
        np.testing.assert_allclose(row_scores[:, row], expected, atol=1e-6)
    for column in range(GRID[1]):
        expected = _numpy(block.column_block.attention_scores(after_rows[:, :, column]))
        np.testing.assert_allclose(column_scores[:, column], expected, atol=1e-5)


@pytest.mark.parametrize("block", [AxialTransformerBlock(GRID, 2, 12), TransformerBlock(2, 12)], ids=["axial", "plain"])
def test_attention_scores_may_come_before_the_first_call(block):
    tokens = _tokens(GRID)
    before = block.attention_scores(tokens)
    assert _call(block, tokens).shape == tokens.shape
    for scores, again in zip(before, block.attention_scores(tokens), strict=True):
        np.testing.assert_array_equal(_numpy(scores), _numpy(again))


def test_both_blocks_have_every_weight_of_a_block_for_themselves():
    plain, block = TransformerBlock(2, 12), AxialTransformerBlock(GRID, 2, 12)
    plain.build((None, 12, DIM))
    block.build((None, 12, DIM))
    names = [weight.path.removeprefix(f"{plain.name}/") for weight in plain.weights]
    expected = [f"{part}/{name}" for part in ("row_block", "column_block") for name in names]
    assert [weight.path.removeprefix(f"{block.name}/") for weight in block.weights] == expected
    assert block.count_params() == 2 * plain.count_params()


def test_every_argument_reaches_both_blocks():
    kwargs = {
        "num_heads": 4,
        "mlp_dim": 6,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.2,
        "drop_path_rate": 0.3,
        "remat": "block",
        **EVERYTHING,
    }
    block = AxialTransformerBlock(GRID, **kwargs)
    for part in (block.row_block, block.column_block):
        assert {name: part.get_config()[name] for name in kwargs} == kwargs


@pytest.mark.slow
@pytest.mark.parametrize("remat", [None, "attention", "block"])
def test_mixed_bfloat16_trains_with_any_batch_size(remat):
    model = keras.Sequential(
        [
            keras.Input((12, DIM)),
            AxialTransformerBlock(GRID, 2, 12, dropout_rate=0.1, remat=remat, dtype="mixed_bfloat16"),
        ]
    )
    model.compile("sgd", "mse")
    kernels = [weight for weight in model.weights if weight.path.endswith("kernel")]
    before = [_numpy(kernel).copy() for kernel in kernels]
    loss = model.fit(_tokens(GRID, 5), np.ones((5, 12, DIM)), batch_size=3, verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert len(kernels) == 8 and {kernel.dtype for kernel in kernels} == {"float32"}
    assert all(np.any(old != _numpy(new)) for old, new in zip(before, kernels, strict=True))


@for_each(
    ("kwargs", "message"),
    [
        ({"grid_size": 0}, "grid_size must be one positive integer or a pair"),
        ({"grid_size": (2, 3, 4)}, "grid_size must be one positive integer or a pair"),
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\); got dropout_rate=1.0"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        AxialTransformerBlock(**{"grid_size": GRID, "num_heads": 2, "mlp_dim": 12, **kwargs})


@for_each("shape", [(2, 13, DIM), (2, 3, 4, DIM), (2, None, DIM)])
def test_tokens_that_are_not_the_grid_are_refused(shape):
    block = AxialTransformerBlock(GRID, 2, 12)
    message = r"needs tokens of shape \(batch, 12, dim\) for its grid_size \(3, 4\), without a class token; got"
    with pytest.raises(ValueError, match=message):
        block.build(shape)
    block.build((None, 12, DIM))
    if None not in shape:
        with pytest.raises(ValueError, match=message):
            block.attention_scores(np.zeros(shape, "float32"))


def _make_identity(block):
    """Zeroes what ends both residual branches."""
    for layer in (block.attention.proj, block.mlp.dense2):
        layer.set_weights([np.zeros_like(weight) for weight in layer.get_weights()])


def _tokens(grid, size=2):
    return np.random.default_rng(1).normal(size=(size, grid[0] * grid[1], DIM)).astype("float32")


def _call(layer, tokens):
    return _numpy(layer(tokens))


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
