"""TokenMerging against bipartite soft matching written down token by token; what it leaves alone; unmerging."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers.token_merging import TokenMerging, TokenUnmerging, unmerged_scores


def matched(keys, prefix):
    """{number of a token of A: (its match in B, cosine similarity)} of one sample."""
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    found = {}
    for a in range(prefix, len(keys), 2):
        others = range(prefix + 1, len(keys), 2)
        best = max(others, key=lambda b: (unit[a] @ unit[b], -b))
        found[a] = best, unit[a] @ unit[best]
    return found


def merged(tokens, keys, sizes, groups, count, prefix):
    """Tokens, sizes and groups of one sample after merging."""
    found = matched(keys, prefix)
    gone = sorted(found, key=lambda a: (-found[a][1], a))[:count]
    left = [number for number in range(prefix, len(tokens), 2) if number not in gone]
    kept = [*range(prefix), *left, *range(prefix + 1, len(tokens), 2)]
    members = {number: [number] + [a for a in gone if found[a][0] == number] for number in kept}
    means = [np.average(tokens[members[number]], axis=0, weights=sizes[members[number]]) for number in kept]
    place = {member: index for index, number in enumerate(kept) for member in members[number]}
    return np.array(means), [sizes[members[number]].sum() for number in kept], [place[group] for group in groups]


def run(layer, *tensors):
    return [ops.convert_to_numpy(x) for x in layer(*map(ops.convert_to_tensor, tensors))]


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    ("patches", "prefix", "count"), [(8, 0, 3), (9, 1, 4), (7, 2, 1), (6, 1, 3), (2, 1, 1), (3, 0, 1)]
)
def test_merging_is_that_of_the_reference_time_after_time(patches, prefix, count):
    tokens = random(3, prefix + patches, 6)
    sizes = np.ones(tokens.shape[:2], "int32")
    groups = np.broadcast_to(np.arange(prefix + patches, dtype="int32"), sizes.shape)
    state = ()
    for step in range(3):
        step_count = min(count, (tokens.shape[1] - prefix) // 2)
        if not step_count:
            break
        keys = random(3, tokens.shape[1], 4, seed=step + 1)
        samples = zip(tokens.astype("float64"), keys.astype("float64"), sizes, groups, strict=True)
        expected = [merged(*sample, step_count, prefix) for sample in samples]
        state = run(TokenMerging(count, prefix), tokens, keys, *state[1:])
        tokens, sizes, groups = state
        assert tokens.shape[1] == keys.shape[1] - step_count and sizes.dtype == groups.dtype == "int32"
        for sample, (means, counts, places) in enumerate(expected):
            np.testing.assert_allclose(tokens[sample], means, atol=1e-5)
            np.testing.assert_array_equal(sizes[sample], counts)
            np.testing.assert_array_equal(groups[sample], places)
        np.testing.assert_array_equal(sizes.sum(1), prefix + patches)


def test_of_equal_similarities_the_earlier_token_comes_first():
    tokens = random(1, 9, 4)
    keys = np.ones((1, 9, 3), "float32")
    _, sizes, groups = run(TokenMerging(2, 1), tokens, keys)
    assert sizes.tolist() == [[1, 1, 1, 3, 1, 1, 1]]  # the first and third patch go into the second
    assert groups.tolist() == [[0, 3, 3, 3, 4, 1, 5, 2, 6]]


def test_zero_keys_give_finite_tokens():
    tokens, _, _ = run(TokenMerging(2), random(2, 6, 4), np.zeros((2, 6, 3), "float32"))
    assert np.isfinite(tokens).all()


def test_a_single_patch_stays():
    tokens = random(2, 3, 4)
    same, sizes, groups = run(TokenMerging(5, 2), tokens, random(2, 3, 2))
    np.testing.assert_array_equal(same, tokens)
    assert sizes.tolist() == [[1, 1, 1]] * 2 and groups.tolist() == [[0, 1, 2]] * 2


def test_float16_does_not_overflow_and_counts_exactly():
    layer = TokenMerging(1, dtype="float16")
    sizes = np.array([[1500, 3001]], "int32")
    tokens, sizes, _ = run(
        layer, np.full((1, 2, 3), 6e4, "float16"), np.ones((1, 2, 2), "float16"), sizes, np.array([[0, 1]], "int32")
    )
    assert tokens.dtype == "float16" and sizes.tolist() == [[4501]]
    np.testing.assert_allclose(tokens, 6e4, rtol=2e-3)


def test_unmerging_puts_a_token_in_all_its_places():
    tokens = random(2, 9, 4)
    few, _, groups = run(TokenMerging(4, 1), tokens, random(2, 9, 3, seed=1))
    layer = TokenUnmerging()
    many = ops.convert_to_numpy(layer(few, groups))
    for sample in range(2):
        np.testing.assert_array_equal(many[sample], few[sample][groups[sample]])
    assert layer.compute_output_shape((None, 5, 4), (None, 9)) == (None, 9, 4)
    assert tuple(layer(keras.Input((5, 4)), keras.Input((9,), dtype="int32")).shape) == (None, 9, 4)


def test_weights_between_first_tokens():
    groups = np.array([[0, 1, 1, 2, 1], [2, 1, 0, 0, 0]], "int32")
    sizes = np.array([[1, 3, 1], [3, 1, 1]], "int32")
    scores = np.random.default_rng(0).dirichlet(np.ones(3), (2, 2, 3)).astype("float32")
    full = ops.convert_to_numpy(unmerged_scores(*map(ops.convert_to_tensor, (scores, sizes, groups))))
    np.testing.assert_allclose(full.sum(-1), 1, atol=1e-6)
    for sample, head, query, key in np.ndindex(full.shape):
        held = groups[sample, key]
        expected = scores[sample, head, groups[sample, query], held] / sizes[sample, held]
        assert full[sample, head, query, key] == pytest.approx(expected, rel=1e-6)


def test_symbolic_shapes_and_config():
    layer = TokenMerging(4, 1, dtype="mixed_bfloat16")
    shapes = [(9, 6), (9, 3), (9,), (20,)]
    inputs = [keras.Input(shape, dtype="int32" if len(shape) == 1 else "float32") for shape in shapes]
    outputs = layer(*inputs)
    assert [(tuple(x.shape), x.dtype) for x in outputs] == [
        ((None, 5, 6), "bfloat16"),
        ((None, 5), "int32"),
        ((None, 20), "int32"),
    ]
    assert TokenMerging.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"token_merging": -1}, "token_merging must be an integer of at least 0; got token_merging=-1"),
        ({"num_prefix_tokens": -1}, "num_prefix_tokens must be an integer of at least 0; got num_prefix_tokens=-1"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TokenMerging(**{"token_merging": 2, **kwargs})


def test_unknown_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="merging needs a known number of tokens; got None"):
        TokenMerging(2).build((None, None, 8))
