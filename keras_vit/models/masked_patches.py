"""MaskedPatchPrediction: self-supervised pre-training that predicts patches with corrupted embeddings.

Its three targets are those of arXiv 2010.11929, appendix B.1.2. A patch is (height, width, channels) of values in
[0, 1], with 1 or 3 channels. Colours have 3 bits per channel: a value v is in bin min(floor(8 v), 7), and the class of
a colour is 64 red + 8 green + blue; the paper does not specify either. A grey image has 8 classes.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_vit import checks
from keras_vit.compat.saved_objects import Accuracy
from keras_vit.layers.patch_corruption import SHARES, PatchCorruption, PatchPrediction
from keras_vit.models.base import head_dtype
from keras_vit.models.derived import feature_extractor
from keras_vit.models.masked_images import GREY, MaskedImages, Reconstruction, check_encoder
from keras_vit.models.vit import VisionTransformer

BINS = 8  # 3 bits per channel
COLORS = ("expected", "likeliest")


def mean_colors(patches, side=1):
    """Average patches (..., height, width, channels) in side x side cells -> (..., side, side, channels)."""
    *before, height, width, channels = ops.shape(patches)
    cells = ops.reshape(patches, (-1, side, height // side, side, width // side, channels))
    return ops.reshape(ops.mean(cells, axis=(2, 4)), (*before, side, side, channels))


def color_classes(colors):
    """Return int32 classes (...) of colours (..., channels) in [0, 1]."""
    bins = ops.cast(ops.clip(ops.floor(BINS * colors), 0, BINS - 1), "int32")
    place_values = BINS ** np.arange(colors.shape[-1])[::-1]
    return ops.sum(bins * ops.convert_to_tensor(place_values, "int32"), axis=-1)


def class_colors(channels):
    """Return the colours of all classes, the centres of their bins: float32 array (classes, channels)."""
    bins = np.stack(np.unravel_index(np.arange(BINS**channels), (BINS,) * channels), axis=-1)
    return ((bins + 0.5) / BINS).astype("float32")


class ColorClasses:
    """Predict the mean colours of side x side cells of a patch, each among 8 ** channels classes.

    Shapes:
        target int32 (..., side * side) in raster order, prediction (..., side * side, classes): logits; a single cell
        has no axis of cells
    """

    def __init__(self, side):
        self.side = side

    def prediction_shape(self, patch_shape):
        """Return the shape of the prediction for one patch of this (height, width, channels).

        Raises:
            ValueError: if the patch cannot be cut into the cells.
        """
        height, width, channels = patch_shape
        if height % self.side or width % self.side:
            raise ValueError(f"target='downsampled' needs patch sides divisible by {self.side}; got {height} x {width}")
        return (*self._cells, BINS**channels)

    def of(self, patches):
        """Return the target of patches (batch, patches, height, width, channels)."""
        classes = color_classes(mean_colors(patches, self.side))
        return ops.reshape(classes, (-1, patches.shape[1], *self._cells))

    def usual(self):
        """Return the cross-entropy, averaged over corrupted patches and their cells, and their accuracy."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), [Accuracy()]

    def images(self, predictions, patch_shape, colors=None):
        """Convert logits to NumPy patches (..., height, width, channels) of the expected or the most likely colour."""
        height, width, channels = patch_shape
        palette = class_colors(channels)
        if (colors or "expected") == "expected":
            odds = np.exp(predictions - predictions.max(-1, keepdims=True))
            cells = odds / odds.sum(-1, keepdims=True) @ palette
        else:
            cells = palette[predictions.argmax(-1)]
        before = predictions.shape[: predictions.ndim - 1 - len(self._cells)]
        cells = cells.reshape(*before, self.side, self.side, channels)
        return cells.repeat(height // self.side, axis=-3).repeat(width // self.side, axis=-2)

    @property
    def _cells(self):
        return (self.side**2,) if self.side > 1 else ()


class Pixels:
    """Predict all pixels of a patch, as values in [0, 1].

    Shapes:
        target and prediction float32 (..., height * width * channels) in the order of an image's axes
    """

    def prediction_shape(self, patch_shape):
        """Return the shape of the prediction for one patch of this (height, width, channels)."""
        return (int(np.prod(patch_shape)),)

    def of(self, patches):
        """Return the target of patches (batch, patches, height, width, channels)."""
        return ops.reshape(patches, (-1, patches.shape[1], *self.prediction_shape(patches.shape[2:])))

    def usual(self):
        """Return the squared error, averaged over corrupted patches and their pixels, and the mean absolute error."""
        return keras.losses.MeanSquaredError(), [keras.metrics.MeanAbsoluteError()]

    def images(self, predictions, patch_shape, colors=None):
        """Convert predictions to patches (..., height, width, channels), clipped to [0, 1]."""
        if colors is not None:
            raise ValueError(f"colors must be None for target='pixels', which predicts no classes; got {colors!r}")
        return predictions.reshape(*predictions.shape[:-1], *patch_shape).clip(0.0, 1.0)


TARGETS: dict[str, ColorClasses | Pixels] = {
    "mean_color": ColorClasses(1),
    "downsampled": ColorClasses(4),
    "pixels": Pixels(),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskedPatchPrediction(MaskedImages):
    """Pre-train by masked patch prediction, without labels (arXiv 2010.11929, B.1.2).

    A share of the patch embeddings of each image is corrupted, and the encoder learns to predict these patches
    (section 4.6). This model shares the layers and weights of the encoder: train this model on images, then fine-tune
    `model.encoder`.

    ```python
    encoder = keras_vit.ViT_Ti16(classes=10)
    model = keras_vit.MaskedPatchPrediction(encoder)
    model.compile("adam")
    model.fit(images)
    ```

    `compile` needs only an optimizer, as the target defines the loss and the metrics. The loss is the mean over the
    corrupted patches. Labels of the images are ignored; sample weights are used. `evaluate` also corrupts images, with
    random draws independent of training.

    Where the paper leaves details open, this class does the following. `round(corruption_rate * patches)` patches are
    corrupted in every image, and the kind of corruption is drawn for each patch. Another patch comes from the same
    image. Pixel values in [0, 1] are cut into 8 equal bins. The cross-entropies of the 16 cells of a patch are
    averaged, not summed. Pixels are predicted on the scale [0, 1]. The learned embedding starts at N(0, 0.02) and the
    head at zero, so the initial cross-entropy is that of chance, ln 512 (ln 8 for grey images).

    The head is a dense layer on the patch tokens after the encoder's last norm. If that norm comes after the pooling
    (`norm_position="after_pooling"`), it is not run, and the head reads the output of the last block. The later layers
    of the encoder (pooling, `pre_logits` and head) are not trained, and are saved with this model.

    Args:
        encoder: a built `VisionTransformer` for images of 1 or 3 channels. Axial and distilled models, registers and
            hybrids are supported; the target of a hybrid is the image area of a grid cell.
        target: what to predict for a patch: `mean_color`, its mean colour as one of 512 classes, 3 bits per channel
            (the best target in the paper); `downsampled`, the same for each cell of the patch downsampled to 4 x 4; or
            `pixels`, all its pixels, with squared error. Targets are computed from the images as
            `encoder.preprocessing` describes them. Grey images have 8 colours.
        corruption_rate: share of the patches that are corrupted, in (0, 1]; 0.5 in the paper.
        shares: probabilities for a corrupted patch: the learned embedding, another patch's embedding, no change.
        seed: integer for reproducible corruption; None draws one.
        name: name of the Keras model; None adds `_masked_patches` to the encoder's name.

    Shapes:
        (batch, height, width, channels), prepared as `encoder.preprocessing` describes -> dict of `places`, the indices
        of the corrupted patches in raster order, int32 (batch, corrupted), and `predictions` (batch, corrupted,
        outputs): logits of 512 classes; (batch, corrupted, 16, 512) for `downsampled`; height * width * channels pixel
        values for `pixels`

    Raises:
        TypeError: if `encoder` is not a `VisionTransformer`.
        ValueError: if a value is out of range, `encoder` takes images with other numbers of channels or has
            `scan_layers`, its grid does not divide the images, no patch would be corrupted, `shares[1]` is not 0 for a
            grid of one patch, or `downsampled` has patch sides that are not divisible by 4.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        target: str = "mean_color",
        corruption_rate: float = 0.5,
        *,
        shares: Sequence[float] = SHARES,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        patch_shape = check_encoder(encoder)
        target_of_patch, config = TARGETS[checks.check_choice("target", target, TARGETS)], encoder.config
        corruption = PatchCorruption(corruption_rate, shares, seed, dtype=config.dtype, name="corruption")
        shape, dtype = target_of_patch.prediction_shape(patch_shape), head_dtype(config)
        head = PatchPrediction(shape, config.num_prefix_tokens, dtype=dtype, name="patch_prediction")
        embeddings, blocks = _split(encoder)
        tokens, places = corruption(embeddings)
        outputs = {"places": places, "predictions": head(blocks(tokens), places)}
        super().__init__(encoder, outputs, name or f"{encoder.name}_masked_patches")
        self.target, self._target, self._patch_shape = target, target_of_patch, patch_shape
        self._corruption, self._blocks, self._head = corruption, blocks, head

    def reconstruct(self, images: npt.ArrayLike, seed: int = 0, colors: str | None = None) -> Reconstruction:
        """Corrupt images and reconstruct them with the model, in one batch.

        Args:
            images: (batch, height, width, channels), prepared as `encoder.preprocessing` describes; a few images.
            seed: integer from 0; the same images and seed give the same corruption.
            colors: for targets that are classes: `expected`, the mean of the class colours weighted by probability, or
                `likeliest`, the colour of the most likely class. None uses `expected`; `pixels` accepts only None.

        Returns:
            A `Reconstruction`.

        Raises:
            ValueError: if `images` do not have the encoder's size, the seed is invalid, or `colors` is given for
                `pixels`.
        """
        if colors is not None:
            checks.check_choice("colors", colors, COLORS)
        images = self._checked_images(images, seed)
        tokens = feature_extractor(self.encoder, "patch_encoder", grid=False)(images, training=False)
        sources, places = self._corruption.draw(tokens, seed)
        predictions = self._head(self._blocks(self._corruption.corrupt(tokens, sources), training=False), places)
        sources, places, predictions = map(ops.convert_to_numpy, (sources, places, predictions))
        patches = ops.convert_to_numpy(self._patches(images))
        corrupted = np.take_along_axis(patches, np.maximum(sources, 0)[..., None, None, None], 1)
        corrupted[sources < 0] = GREY
        predicted = self._target.images(predictions, self._patch_shape, colors)
        return self._reconstruction(patches, corrupted, places, predicted)

    @property
    def settings(self) -> dict[str, Any]:
        """Return a dict of `target`, `corruption_rate`, `shares` and `seed`."""
        names = ("corruption_rate", "shares", "seed")
        return {"target": self.target, **{name: getattr(self._corruption, name) for name in names}}

    def _usual(self):
        return self._target.usual()

    def _targets(self, images):
        return self._target.of(self._patches(images))


def _split(encoder):
    """Return the patch embeddings in the encoder's graph, and a model from these to the tokens that the head reads."""
    config = encoder.config
    last = "encoder_norm" if config.norm_position == "before_pooling" else f"block_{config.num_layers - 1:02d}"
    embeddings, tokens = (feature_extractor(encoder, name, grid=False).output for name in ("patch_encoder", last))
    return embeddings, keras.Model(embeddings, tokens, name="blocks")
