"""Random subsets of the patches: PatchDropout for training, and the layers of a masked autoencoder."""

from functools import partial

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer
from keras_vit.layers.patch_corruption import take_tokens
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(Layer):
    """Drop a random share of the patch tokens in training.

    This is the masking of FLIP (arXiv 2212.00794, section 3). Each image keeps `int((1 - rate) * patches)` tokens, at
    least one, in random order, without replacement. Tokens before the patches are always kept. Inference keeps all
    tokens.

    Args:
        patch_drop_rate: share of the patches that are removed, in [0, 1).
        num_prefix_tokens: number of class, distillation and register tokens at the start of the sequence.
        seed: integer for reproducible draws; None draws one.

    Shapes:
        (batch, num_prefix_tokens + patches, dim) -> the same in inference; in training (batch, num_prefix_tokens +
        kept patches, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(
        self, patch_drop_rate: float, num_prefix_tokens: int = 0, seed: int | None = None, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        self.configure(patch_drop_rate=patch_drop_rate, num_prefix_tokens=num_prefix_tokens, seed=seed)
        self.seeds = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        if not training or not self.patch_drop_rate:
            return tokens
        noise = draw_noise(tokens, self.num_prefix_tokens, self.seeds)
        count = max(kept_count(self.patch_drop_rate, noise.shape[1]), 1)
        return _kept(tokens, ops.argsort(noise, axis=1)[:, :count], self.num_prefix_tokens)


@keras.saving.register_keras_serializable(package="keras_vit")
class VisiblePatches(Layer):
    """Keep the patches with the lowest noise, as MAE does (arXiv 2111.06377, section 3).

    Each image keeps `int((1 - mask_ratio) * patches)` patches, in the order of their noise. Tokens before the patches
    are always kept. Training and inference draw noise from separate random streams, so validation does not change the
    training.

    Args:
        mask_ratio: share of the patches that are removed, in (0, 1).
        num_prefix_tokens: number of class, distillation and register tokens at the start of the sequence.
        seed: integer for reproducible noise; None draws one.

    Shapes:
        tokens (batch, num_prefix_tokens + patches, dim), and optionally noise (batch, patches) -> the kept tokens
        (batch, num_prefix_tokens + kept, dim); the rank of each patch in the order of the noise, which is its index
        among the kept patches if it is below their number, int32 (batch, patches); the indices of the removed patches,
        ascending, int32 (batch, removed)

    Raises:
        ValueError: if a value is out of range; at build, if all patches or none would be removed.
    """

    own_checks = {"mask_ratio": partial(checks.check_number, kind="number in (0, 1)", is_valid=lambda x: 0 < x < 1)}

    def __init__(self, mask_ratio, num_prefix_tokens=0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.configure(mask_ratio=mask_ratio, num_prefix_tokens=num_prefix_tokens, seed=seed)
        self.training_seeds = keras.random.SeedGenerator(seed)
        self.inference_seeds = keras.random.SeedGenerator(seed)

    def build(self, tokens_shape):
        patches = tokens_shape[1] - self.num_prefix_tokens
        self.count = kept_count(self.mask_ratio, patches)
        if not 0 < self.count < patches:
            raise ValueError(
                f"mask_ratio must keep and remove at least one of the {patches} patches; got {self.mask_ratio}"
            )

    def call(self, tokens, noise=None, training=None):
        if noise is None:
            seeds = self.training_seeds if training else self.inference_seeds
            noise = draw_noise(tokens, self.num_prefix_tokens, seeds)
        order = ops.cast(ops.argsort(noise, axis=1), "int32")
        visible = _kept(tokens, order[:, : self.count], self.num_prefix_tokens)
        return visible, ops.cast(ops.argsort(order, axis=1), "int32"), ops.sort(order[:, self.count :], axis=1)

    def compute_output_spec(self, tokens, noise=None, training=None):
        batch, patches = tokens.shape[0], tokens.shape[1] - self.num_prefix_tokens
        count = kept_count(self.mask_ratio, patches)
        visible = (batch, self.num_prefix_tokens + count, tokens.shape[-1])
        ranks, removed = (keras.KerasTensor((batch, length), "int32") for length in (patches, patches - count))
        return keras.KerasTensor(visible, self.compute_dtype), ranks, removed


@keras.saving.register_keras_serializable(package="keras_vit")
class RestoredPatches(Layer):
    """Put the kept patches back to their places, and a learned mask token to the places of the others.

    Args:
        num_prefix_tokens: number of class, distillation and register tokens at the start of the sequence.

    Shapes:
        the kept tokens (batch, num_prefix_tokens + kept, dim), and the ranks of all patches from `VisiblePatches`,
        (batch, patches) -> (batch, num_prefix_tokens + patches, dim)
    """

    def __init__(self, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.configure(num_prefix_tokens=num_prefix_tokens)

    def build(self, tokens_shape, ranks_shape):
        self.mask_token = self.normal_weight("mask_token", (1, 1, tokens_shape[-1]))

    def call(self, tokens, ranks):
        prefix, visible = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        is_removed = (ranks >= visible.shape[1])[..., None]
        patches = ops.where(is_removed, ops.cast(self.mask_token, tokens.dtype), take_tokens(visible, ranks))
        return ops.concatenate([prefix, patches], axis=1)

    def compute_output_shape(self, tokens_shape, ranks_shape):
        return (tokens_shape[0], self.num_prefix_tokens + ranks_shape[1], tokens_shape[2])


def kept_count(rate, patches):
    """Return the number of patches per image that are kept if this share is removed, rounded down as MAE does."""
    return int(patches * (1 - rate))


def draw_noise(tokens, num_prefix_tokens, seed):
    """Return uniform noise (batch, patches) for tokens (batch, num_prefix_tokens + patches, dim)."""
    return keras.random.uniform((ops.shape(tokens)[0], tokens.shape[1] - num_prefix_tokens), dtype="float32", seed=seed)


def _kept(tokens, places, num_prefix_tokens):
    """Return the prefix tokens, then the patches at `places` (batch, kept)."""
    patches = take_tokens(tokens[:, num_prefix_tokens:], places)
    return ops.concatenate([tokens[:, :num_prefix_tokens], patches], axis=1) if num_prefix_tokens else patches
