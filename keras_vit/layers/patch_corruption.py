"""Masked patch prediction: PatchCorruption replaces some patch embeddings, PatchPrediction predicts their patches."""

import math
import numbers

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer

SHARES = (0.8, 0.1, 0.1)  # arXiv 2010.11929, appendix B.1.2, after BERT
_MASKED = -1  # source index that stands for the learned embedding


def _check_corruption_rate(name, value):
    return checks.check_number(name, value, "number in (0, 1]", lambda number: 0 < number <= 1)


def _check_shares(name, shares):
    """Return three probabilities as a tuple; raise `ValueError` unless they sum to 1."""
    is_triple = isinstance(shares, (tuple, list)) and len(shares) == 3
    if not is_triple or not all(isinstance(x, numbers.Real) and x >= 0 for x in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            "shares must be three probabilities that sum to 1, for the learned embedding, another patch's embedding "
            f"and no change; got shares={shares!r}"
        )
    return tuple(float(share) for share in shares)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchCorruption(Layer):
    """Corrupt a fixed share of the patch embeddings of every image.

    The layer draws at random `round(corruption_rate * patches)` patches of each image without replacement. Each of
    them, independently, becomes a learned embedding, becomes the embedding of another patch of the same image, or stays
    unchanged. The other patch is drawn uniformly from all other patches, corrupted or not, and contributes its original
    embedding.

    Training and inference use separate random streams, so validation does not change the training.

    Args:
        corruption_rate: share of the patches that are corrupted, in (0, 1].
        shares: probabilities for a corrupted patch: the learned embedding, another patch's embedding, no change.
        seed: integer for reproducible draws; None draws one.

    Shapes:
        (batch, patches, dim) -> the same, and the indices of the corrupted patches, ascending, int32 (batch, corrupted)

    Raises:
        ValueError: if a value is out of range; at build, if no patch would be corrupted, or if there is a single patch
            and `shares` replace patches by other ones.
    """

    own_checks = {"corruption_rate": _check_corruption_rate, "shares": _check_shares}

    def __init__(self, corruption_rate, shares=SHARES, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.configure(corruption_rate=corruption_rate, shares=shares, seed=seed)
        self.training_seeds = keras.random.SeedGenerator(seed)
        self.inference_seeds = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        patches = input_shape[1]
        self.count = corrupted_count(self.corruption_rate, patches)
        if patches == 1 and self.shares[1]:
            raise ValueError(f"shares[1] must be 0 where there is a single patch; got shares={self.shares}")
        self.mask_embedding = self.normal_weight("mask_embedding", input_shape[-1:])  # N(0, 0.02) as in BERT

    def call(self, tokens, training=None):
        sources, places = self.draw(tokens, self.training_seeds if training else self.inference_seeds)
        return self.corrupt(tokens, sources), places

    def compute_output_spec(self, tokens, training=None):
        batch, patches, _ = tokens.shape
        places = keras.KerasTensor((batch, corrupted_count(self.corruption_rate, patches)), "int32")
        return keras.KerasTensor(tokens.shape, self.compute_dtype), places

    def draw(self, tokens, seed):
        """Draw the corrupted patches and their replacements.

        Args:
            tokens: (batch, patches, dim).
            seed: an integer or a `keras.random.SeedGenerator`.

        Returns:
            Pair of int32 tensors: the index of the patch whose embedding each patch gets, -1 for the learned one
            (batch, patches); and the indices of the corrupted patches, ascending (batch, corrupted).
        """
        batch, patches, _ = ops.shape(tokens)
        drawn = keras.random.uniform((batch, patches, 3), dtype="float32", seed=seed)
        order = ops.cast(ops.argsort(drawn[..., 0], axis=1), "int32")
        is_corrupted = ops.argsort(order, axis=1) < self.count  # its rank in a random order
        masked, other, _ = self.shares
        kind, own = drawn[..., 1], ops.arange(patches, dtype="int32")
        step = 1 + ops.cast(drawn[..., 2] * (patches - 1), "int32")
        others = (own + ops.minimum(step, patches - 1)) % patches  # step is patches if the product is rounded up
        changed = ops.where(kind < masked, _MASKED, ops.where(kind < masked + other, others, own))
        return ops.where(is_corrupted, changed, own), ops.sort(order[:, : self.count], axis=1)

    def corrupt(self, tokens, sources):
        """Return the tokens (batch, patches, dim), replaced according to `sources`, the first result of `draw`."""
        sources = sources[..., None]
        own = ops.arange(tokens.shape[1], dtype="int32")[:, None]
        tokens_of_others = take_tokens(tokens, ops.squeeze(sources, -1))
        mask_embedding = ops.cast(self.mask_embedding, tokens.dtype)
        return ops.where(sources == own, tokens, ops.where(sources == _MASKED, mask_embedding, tokens_of_others))


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchPrediction(Layer):
    """Predict values for selected patches from their tokens.

    Args:
        prediction_shape: shape of the prediction for one patch.
        num_prefix_tokens: number of class, distillation and register tokens at the start of the sequence.
        kernel_initializer: name of the initializer of the projection; it starts at zero as classification heads do.

    Shapes:
        (batch, num_prefix_tokens + patches, dim), and the indices of the patches (batch, places) -> (batch, places,
        *prediction_shape)
    """

    def __init__(self, prediction_shape, num_prefix_tokens=0, kernel_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.configure(prediction_shape=prediction_shape, num_prefix_tokens=num_prefix_tokens)
        self.configure(kernel_initializer=kernel_initializer)
        self.projection = self.dense(math.prod(self.prediction_shape), "projection", kernel_initializer)

    def build(self, tokens_shape, places_shape):
        self.projection.build((places_shape[0], places_shape[1], tokens_shape[-1]))

    def call(self, tokens, places):
        outputs = self.projection(take_tokens(tokens[:, self.num_prefix_tokens :], places))
        return ops.reshape(outputs, (-1, ops.shape(places)[1], *self.prediction_shape))

    def compute_output_shape(self, tokens_shape, places_shape):
        return (places_shape[0], places_shape[1], *self.prediction_shape)


def corrupted_count(corruption_rate, patches):
    """Return the number of corrupted patches per image.

    It is `round(corruption_rate * patches)`, with halves rounded to even.

    Raises:
        ValueError: if the number is 0.
    """
    count = round(corruption_rate * patches)
    if not count:
        raise ValueError(f"corruption_rate must corrupt at least one of the {patches} patches; got {corruption_rate=}")
    return count


def take_tokens(tokens, places):
    """Return the tokens (batch, places, dim) at the indices `places` (batch, places); zeros for indices of no token.

    This is a matrix product with one-hot rows: its gradient needs no scatter operation, and a batch that is distributed
    over devices stays distributed.
    """
    return ops.matmul(ops.one_hot(places, tokens.shape[1], dtype=tokens.dtype), tokens)
