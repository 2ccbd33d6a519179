"""PatchCorruption: replaces some patch embeddings, so that a model can learn to predict what stood there."""

import numbers

import keras
from keras import ops

from keras_vit import checks

SHARES = (0.8, 0.1, 0.1)  # arXiv 2010.11929, appendix B.1.2, after BERT
_MASKED = -1  # in place of the number of a source patch


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchCorruption(keras.layers.Layer):
    """Corrupts the embeddings of as many patches of every image, at places drawn anew in every call.

    Of the patches of an image, `round(corruption_rate * patches)` are drawn without replacement. Each of them,
    independently, becomes a learned embedding, or that of another patch of the same image (all others are equally
    likely, corrupted or not, and taken as they were before), or stays as it is.

    Training and inference draw from streams of their own, so that a validation changes nothing in the training.

    Args:
        corruption_rate: share of the patches that are corrupted, in (0, 1].
        shares: of the corrupted ones: probabilities of the learned embedding, of another patch's, of no change.
        seed: integer for reproducible draws; None draws one.

    Shapes:
        (batch, patches, dim) -> the same, and the corrupted places, ascending, int32 (batch, corrupted)

    Raises:
        ValueError: on values out of range; when built on tokens of which it would corrupt none, or on a single patch
            that is to become another.
    """

    def __init__(self, corruption_rate, shares=SHARES, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.corruption_rate = check_corruption_rate(corruption_rate)
        self.shares = check_shares(shares)
        self.seed = seed
        self.training_seeds = keras.random.SeedGenerator(seed)
        self.inference_seeds = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        patches = input_shape[1]
        self.count = corrupted_count(self.corruption_rate, patches)
        if patches == 1 and self.shares[1]:
            raise ValueError(f"shares[1] must be 0 where there is a single patch; got shares={self.shares}")
        initializer = keras.initializers.RandomNormal(stddev=0.02)  # BERT's
        self.mask_embedding = self.add_weight(name="mask_embedding", shape=input_shape[-1:], initializer=initializer)
        self.built = True

    def call(self, tokens, training=None):
        sources, places = self.draw(tokens, self.training_seeds if training else self.inference_seeds)
        return self.corrupt(tokens, sources), places

    def draw(self, tokens, seed):
        """Draws what happens to which patch.

        Args:
            tokens: (batch, patches, dim).
            seed: an integer or a `keras.random.SeedGenerator`.

        Returns:
            Pair of int32 tensors: (batch, patches), the number of the patch whose embedding each patch gets, -1 for the
            learned one; and the corrupted places, ascending (batch, corrupted).
        """
        batch, patches, _ = ops.shape(tokens)
        drawn = keras.random.uniform((batch, patches, 3), dtype="float32", seed=seed)
        order = ops.cast(ops.argsort(drawn[..., 0], axis=1), "int32")
        is_corrupted = ops.argsort(order, axis=1) < self.count  # the rank of each patch in that order
        masked, other, _ = self.shares
        kind, own = drawn[..., 1], ops.arange(patches, dtype="int32")
        step = 1 + ops.cast(drawn[..., 2] * (patches - 1), "int32")
        others = (own + ops.minimum(step, patches - 1)) % patches  # the product may be rounded up
        changed = ops.where(kind < masked, _MASKED, ops.where(kind < masked + other, others, own))
        return ops.where(is_corrupted, changed, own), ops.sort(order[:, : self.count], axis=1)

    def corrupt(self, tokens, sources):
        """Returns the tokens (batch, patches, dim) with what the first result of `draw` says in their places."""
        sources = sources[..., None]
        own = ops.arange(tokens.shape[1], dtype="int32")[:, None]
        tokens_of_others = take_tokens(tokens, ops.squeeze(sources, -1))
        mask_embedding = ops.cast(self.mask_embedding, tokens.dtype)
        return ops.where(sources == own, tokens, ops.where(sources == _MASKED, mask_embedding, tokens_of_others))

    def get_config(self):
        return {
            **super().get_config(),
            "corruption_rate": self.corruption_rate,
            "shares": self.shares,
            "seed": self.seed,
        }


def corrupted_count(corruption_rate, patches):
    """Returns how many of the patches of an image are corrupted: `round(corruption_rate * patches)`, halves to even.

    Raises:
        ValueError: if that is none.
    """
    count = round(corruption_rate * patches)
    if not count:
        raise ValueError(f"corruption_rate must reach at least one of the {patches} patches; got {corruption_rate=}")
    return count


def take_tokens(tokens, places):
    """Returns the tokens (batch, places, dim) at places (batch, places) of (batch, tokens, dim); zeros at place -1.

    By a product with ones and zeros, of which only the ones matter: its gradient needs no scattering, and a batch
    that is spread over devices stays spread.
    """
    return ops.matmul(ops.one_hot(places, tokens.shape[1], dtype=tokens.dtype), tokens)


def check_corruption_rate(value):
    """Returns the rate as a float; raises `ValueError` unless it is in (0, 1]."""
    if checks.check_positive("corruption_rate", value) > 1:
        raise ValueError(f"corruption_rate must be a number in (0, 1]; got corruption_rate={value!r}")
    return float(value)


def check_shares(shares):
    """Returns three probabilities as a tuple; raises `ValueError` unless they sum to 1."""
    is_triple = isinstance(shares, (tuple, list)) and len(shares) == 3
    if not is_triple or not all(isinstance(x, numbers.Real) and x >= 0 for x in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            "shares must be three probabilities that sum to 1: of the learned embedding, of another patch's, of no "
            f"change; got shares={shares!r}"
        )
    return tuple(float(share) for share in shares)
