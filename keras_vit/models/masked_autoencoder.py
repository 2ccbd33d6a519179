"""MaskedAutoencoder: self-supervised pre-training that reconstructs the pixels of removed patches (MAE)."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_vit import checks
from keras_vit.config import DecoderConfig
from keras_vit.config.base import ARGUMENTS
from keras_vit.config.needs import Choice, conflicts
from keras_vit.layers import AddPositionEmbs, TransformerBlock
from keras_vit.layers.base import NORM_LAYERS, Layer
from keras_vit.layers.patch_corruption import PatchPrediction
from keras_vit.layers.patch_dropout import RestoredPatches, VisiblePatches
from keras_vit.layers.patches import cut_patches
from keras_vit.models.base import head_dtype
from keras_vit.models.derived import feature_extractor
from keras_vit.models.masked_images import GREY, MaskedImages, Reconstruction, check_encoder
from keras_vit.models.vit import VisionTransformer

_VARIANCE_EPSILON = 1e-6  # added to the variance of a patch; published with the code

# the encoder runs on the visible patches alone, and the decoder predicts the pixels of the others
_USE = Choice("", "a MaskedAutoencoder", needs=("pixels",), breaks=("whole_grid",))


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedAutoencoder(MaskedImages):
    """Pre-train as a masked autoencoder, without labels (MAE, arXiv 2111.06377).

    A large share of the patches of each image is removed. The encoder runs on the others alone, which makes training
    fast, and a small decoder predicts the pixels of the removed patches. This model shares the layers and weights of
    the encoder: train this model on images, then fine-tune `model.encoder`.

    ```python
    encoder = keras_vit.MAE_B16()
    model = keras_vit.MaskedAutoencoder(encoder)
    model.compile("adam")
    model.fit(images)
    ```

    `compile` needs only an optimizer. The loss is the squared error, averaged over the pixels of the removed patches.
    Labels of the images are ignored; sample weights are used. `evaluate` also removes patches, with random draws
    independent of training. `mae/imagenet` is the published recipe.

    As published, positions are added to all patches, then `int((1 - mask_ratio) * patches)` of them are kept in random
    order, behind class tokens and registers. The tokens are normalised after the last block, with the encoder's last
    norm. If that norm comes after the pooling or is absent, this model has a norm of its own; fine-tuning drops it, as
    the authors do. The decoder has fixed positions (`sincos2d_mae`); class tokens have none there. Position tables that
    are published as fixed, those with `position_init="sincos2d_mae"`, are not trained here; other learned tables are.
    The later layers of the encoder (pooling, `pre_logits` and head) are not trained, and are saved with this model.

    Args:
        encoder: a built `VisionTransformer` for images of 1 or 3 channels whose blocks attend to all tokens: no hybrid,
            no windows, no axial attention, no merged tokens, and positions that are added once before the first block.
        decoder: `DecoderConfig` of the decoder, or a dict of its fields; None is the published one.
        mask_ratio: share of the patches that are removed, in (0, 1).
        norm_pixels: whether the pixels of each patch are normalised by their mean and variance (that of n - 1, plus
            1e-6) before they are compared; the published models for fine-tuning were trained this way. Otherwise the
            targets are the prepared images.
        seed: integer for reproducible masks; None draws one.
        name: name of the Keras model; None adds `_masked_autoencoder` to the encoder's name.

    Shapes:
        (batch, height, width, channels), prepared as `encoder.preprocessing` describes -> dict of `places`, the indices
        of the removed patches in raster order, int32 (batch, removed), and `predictions` (batch, removed, patch height
        * patch width * channels) in the order of an image's axes

    Raises:
        TypeError: if `encoder` is not a `VisionTransformer`.
        ValueError: if a value is out of range, the encoder cannot run on some of the patches or has `scan_layers`, or
            all patches or none would be removed.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        decoder: DecoderConfig | Mapping[str, Any] | None = None,
        mask_ratio: float = 0.75,
        norm_pixels: bool = True,
        *,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        patch_shape, config = check_encoder(encoder), encoder.config
        checked: DecoderConfig = ARGUMENTS["decoder"]("decoder", decoder)
        if checks.check_flag("norm_pixels", norm_pixels) and math.prod(patch_shape) == 1:
            raise ValueError("norm_pixels=True needs patches of more than one value; got patches of 1 pixel")
        config._refuse(dict.fromkeys(conflicts(config, _USE), True))
        prefix, common = config.num_prefix_tokens, {"dtype": config.dtype}
        names = [layer.name for layer in encoder.layers]
        last = next(name for name in ("pre_norm", "dropout", "position_embs") if name in names)
        embeddings = feature_extractor(encoder, last, grid=False).output
        visible = VisiblePatches(mask_ratio, prefix, seed, name="visible", **common)
        blocks = [encoder.get_layer(f"block_{index:02d}") for index in range(config.num_layers)]
        is_own = config.norm_position == "before_pooling"
        norm = NORM_LAYERS[config.block.norm](epsilon=config.epsilon, name="visible_norm", **common)
        encode = _Chain([*blocks, encoder.get_layer("encoder_norm") if is_own else norm], name="encode", **common)
        tokens, ranks, places = visible(embeddings)
        tokens = encode(tokens)
        decode = _make_decoder(checked, config, tokens.shape, math.prod(patch_shape))
        fixed = [decode.get_layer("decoder_position_embs")]
        fixed += [encoder.get_layer("position_embs")] if config.embedding.position_init != "normal" else []
        outputs = {"places": places, "predictions": decode([tokens, ranks, places])}
        super().__init__(encoder, outputs, name or f"{encoder.name}_masked_autoencoder", fixed)
        self.decoder, self.norm_pixels, self._embeddings = checked, norm_pixels, embeddings
        self._visible, self._encode, self._decode = visible, encode, decode

    def reconstruct(self, images: npt.ArrayLike, seed: int = 0) -> Reconstruction:
        """Return images with some patches removed and reconstructed.

        With `norm_pixels`, the predicted patches get the mean and the variance of the removed ones, as in the authors'
        figures.

        Args:
            images: (batch, height, width, channels), prepared as `encoder.preprocessing` describes; a few images.
            seed: integer from 0; the same images and seed remove the same patches.

        Returns:
            A `Reconstruction`; `analysis.plots.reconstruction` draws it.

        Raises:
            ValueError: if `images` do not have the encoder's size or the seed is invalid.
        """
        batch = self._checked_images(images, seed)
        tokens = keras.Model(self.input, self._embeddings)(batch, training=False)
        noise = keras.random.uniform((len(batch), math.prod(self.encoder.config.grid_size)), seed=seed)
        tokens, ranks, places = self._visible(tokens, noise)
        predicted = self._decode([self._encode(tokens, training=False), ranks, places], training=False)
        seen = self._standardised(batch)
        if self.norm_pixels:
            moments = _moments(ops.reshape(seen, (*seen.shape[:2], -1)))
            mean, deviation = (ops.take_along_axis(moment, places[..., None], axis=1) for moment in moments)
            predicted = predicted * deviation + mean
        seen, places, predicted = map(ops.convert_to_numpy, (seen, places, predicted))
        mean, std = self._statistics()
        patches, predicted = seen * std + mean, predicted.reshape(*places.shape, *seen.shape[2:]) * std + mean
        corrupted = patches.copy()
        corrupted[np.arange(len(batch))[:, None], places] = GREY
        return self._reconstruction(patches, corrupted, places, predicted.clip(0.0, 1.0))

    @property
    def settings(self) -> dict[str, Any]:
        """Return a dict of `decoder`, `mask_ratio`, `norm_pixels` and `seed`."""
        numbers = {"mask_ratio": self._visible.mask_ratio, "norm_pixels": self.norm_pixels}
        return {"decoder": self.decoder.to_dict(), **numbers, "seed": self._visible.seed}

    def _usual(self):
        return keras.losses.MeanSquaredError(), []

    def _targets(self, images):
        patches = self._standardised(images)
        pixels = ops.reshape(patches, (-1, patches.shape[1], math.prod(patches.shape[2:])))
        if not self.norm_pixels:
            return pixels
        mean, deviation = _moments(pixels)
        return (pixels - mean) / deviation

    def _standardised(self, images):
        """Return the patches as the encoder's first layer gets them: (x / 255 - mean) / std."""
        images, (mean, std) = ops.cast(images, "float32"), self._statistics()
        if self.encoder.preprocessing.in_model:
            images = (images / 255.0 - mean) / std
        return cut_patches(images, self.encoder.config.grid_size)

    def _statistics(self):
        preprocessing = self.encoder.preprocessing
        return np.array(preprocessing.mean, "float32"), np.array(preprocessing.std, "float32")


class _Chain(Layer):
    """Call layers of another model one after another, which adds no calls to the graph of that model."""

    def __init__(self, layers, **kwargs):
        super().__init__(**kwargs)
        self.chained = layers

    def call(self, x):
        for layer in self.chained:
            x = layer(x)
        return x


def _make_decoder(decoder, config, tokens_shape, outputs):
    """Return the decoder: a model of the encoded tokens, the ranks of all patches, and the places to predict."""
    count, prefix, common = math.prod(config.grid_size), config.num_prefix_tokens, {"dtype": config.dtype}
    compute_dtype = keras.dtype_policies.get(config.dtype).compute_dtype
    encoded = keras.Input(tokens_shape[1:], dtype=compute_dtype, name="encoded")
    ranks = keras.Input((count,), dtype="int32", name="ranks")
    places = keras.Input((None,), dtype="int32", name="places")
    tokens = keras.layers.Dense(decoder.hidden_dim, name="decoder_embed", **common)(encoded)
    tokens = RestoredPatches(prefix, name="decoder_tokens", **common)(tokens, ranks)
    table = {"grid_size": config.grid_size, "position_init": "sincos2d_mae", "name": "decoder_position_embs"}
    rows = config.num_class_tokens
    tokens = AddPositionEmbs("learned", num_class_tokens=rows, num_registers=prefix - rows, **table, **common)(tokens)
    for index in range(decoder.num_layers):
        shared = {name: getattr(config, name) for name in ("qkv_bias", "gelu", "epsilon", "remat", "dtype")}
        shared["name"] = f"decoder_block_{index:02d}"
        tokens = TransformerBlock(decoder.num_heads, decoder.mlp_dim, **shared)(tokens)
    tokens = NORM_LAYERS["layer"](epsilon=config.epsilon, name="decoder_norm", **common)(tokens)
    head = PatchPrediction((outputs,), prefix, "glorot_uniform", dtype=head_dtype(config), name="decoder_pred")
    model = keras.Model([encoded, ranks, places], head(tokens, places), name="decoder")
    model.config = decoder  # for files, as in a model of this package
    return model


def _moments(pixels):
    """Return the mean, and the root of the unbiased variance plus epsilon, of each patch; both (..., 1)."""
    mean = ops.mean(pixels, axis=-1, keepdims=True)
    variance = ops.sum(ops.square(pixels - mean), axis=-1, keepdims=True) / (pixels.shape[-1] - 1)
    return mean, ops.sqrt(variance + _VARIANCE_EPSILON)
