"""The layers' mathematics once more, in NumPy and float64, for tests to compare with."""

import math

import keras
import numpy as np
import pytest


class Reference:
    """Plain functions of arrays; kernels are (in, out) and heads are consecutive blocks of columns."""

    @staticmethod
    def softmax(logits):
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    @staticmethod
    def layer_norm(x, gamma, beta, epsilon):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * gamma + beta

    @staticmethod
    def gelu(x, form):
        if form == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    @classmethod
    def mlp(cls, x, kernel1, bias1, kernel2, bias2, form):
        return cls.gelu(x @ kernel1 + bias1, form) @ kernel2 + bias2

    @classmethod
    def attention(cls, queries, keys, values):
        """One head of one sample: (queries, width), (keys, width), (keys, width) -> (output, weights)."""
        weights = cls.softmax(queries @ keys.T / math.sqrt(queries.shape[-1]))
        return weights @ values, weights

    @classmethod
    def self_attention(cls, tokens, num_heads, qkv, projection, norms=None, epsilon=1e-6):
        """(tokens, dim) of one sample -> (output, weights (heads, tokens, tokens))."""
        dim = tokens.shape[-1]
        kernel, bias = qkv
        outputs, weights = [], []
        for head in range(num_heads):
            parts = []
            for part in range(3):  # query, key, value
                columns = slice(part * dim + head * dim // num_heads, part * dim + (head + 1) * dim // num_heads)
                parts.append(tokens @ kernel[:, columns] + bias[columns])
            if norms:
                parts[:2] = [cls.layer_norm(x, *norm, epsilon) for x, norm in zip(parts[:2], norms, strict=True)]
            output, weight = cls.attention(*parts)
            outputs.append(output)
            weights.append(weight)
        return np.concatenate(outputs, axis=-1) @ projection[0] + projection[1], np.stack(weights)


@pytest.fixture(scope="session")
def reference():
    return Reference


@pytest.fixture(scope="session")
def randomise():
    """Function that gives every weight of a built layer random values and returns them in float64 by path."""

    def give(layer, seed=0, scale=0.5):
        rng = np.random.default_rng(seed)
        for weight in layer.weights:
            weight.assign(rng.normal(0.0, scale, weight.shape).astype("float32"))
        prefix = f"{layer.name}/"
        return {
            weight.path.removeprefix(prefix): keras.ops.convert_to_numpy(weight.value).astype("float64")
            for weight in layer.weights
        }

    return give


@pytest.fixture(scope="session")
def initial():
    """Function from a built layer to its initial weights by path."""

    def read(layer):
        prefix = f"{layer.name}/"
        return {weight.path.removeprefix(prefix): keras.ops.convert_to_numpy(weight.value) for weight in layer.weights}

    return read


@pytest.fixture(scope="session")
def check_uniform():
    """Function that checks that an array of at least 10,000 numbers is U(-limit, limit)."""

    def check(values, limit):
        assert values.size >= 10_000
        assert np.abs(values).max() <= limit * (1 + 1e-6)
        assert np.abs(values).max() > 0.99 * limit
        assert abs(values.mean()) < 0.03 * limit
        assert values.std() == pytest.approx(limit / math.sqrt(3), rel=0.03)

    return check
