"""DifferentialSelfAttention: the difference of two attention maps per head (arXiv 2410.05258)."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.attend import attend
from keras_vit.layers.base import head_width
from keras_vit.layers.self_attention import MultiHeadSelfAttention

_EPSILON = 1e-5  # of the norm of each head, as in the authors' code


@keras.saving.register_keras_serializable(package="keras_vit")
class DifferentialSelfAttention(MultiHeadSelfAttention):
    """Apply differential attention (arXiv 2410.05258, Eqs. 1 to 3).

    The queries and keys of a head are two of half its width, [q_1, q_2] and [k_1, k_2], of width d each. The head is
    (softmax(q_1 k_1^T / sqrt(d)) - lambda softmax(q_2 k_2^T / sqrt(d))) v, normalised by an RMSNorm (epsilon 1e-5) and
    multiplied by 1 - `lambda_init`; lambda = exp(l_q1 l_k1) - exp(l_q2 l_k2) + `lambda_init` for four learned vectors l
    of width d.

    Args:
        lambda_init: initial lambda, above 0 and below 1; that of block l, from 0, is 0.8 - 0.6 exp(-0.3 l).
        *args, **kwargs: the arguments of `MultiHeadSelfAttention`; `qk_norm` must be False.

    Shapes:
        as in `MultiHeadSelfAttention`, without `relative_keys` and `rotary`; the attention weights are the difference
        of both, so they may be negative.

    Raises:
        ValueError: if a value is out of range; at build, if twice the number of heads does not divide the width.
    """

    own_checks = {"lambda_init": checks.check_rate}
    maps_per_head = 2

    def __init__(self, lambda_init: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.configure(lambda_init=lambda_init)
        if self.qk_norm:
            raise ValueError("qk_norm must be False, as the norm is that of whole heads; got qk_norm=True")

    def build(self, input_shape):
        super().build(input_shape)
        width = 2 * head_width(2 * self.num_heads, input_shape[-1])
        names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        self.lambdas = [self.normal_weight(name, (width // 2,), stddev=0.1) for name in names]
        self.head_norm = self.make_norm("rms", _EPSILON, "head_norm", (None, None, self.num_heads, width))

    def _attend(self, query, key, value, positions, **form):
        # `attend` divides by the root of the width of the values, which is twice that of the queries.
        queries, keys = ops.split(query * math.sqrt(2.0), 2, axis=-1), ops.split(key, 2, axis=-1)
        first, second = (attend(q, k, value, positions, **form) for q, k in zip(queries, keys, strict=True))
        weight = self._lambda()
        if not form["with_scores"]:
            return self._normed(first - ops.cast(weight, first.dtype) * second)
        heads, scores = (x - ops.cast(weight, x.dtype) * y for x, y in zip(first, second, strict=True))
        return self._normed(heads), scores

    def _lambda(self):
        q1, k1, q2, k2 = (ops.cast(x, self.variable_dtype) for x in self.lambdas)
        return ops.exp(ops.sum(q1 * k1)) - ops.exp(ops.sum(q2 * k2)) + self.lambda_init

    def _normed(self, heads):
        return self.head_norm(heads) * (1.0 - self.lambda_init)
