"""The three targets of masked patch prediction (arXiv 2010.11929, appendix B.1.2).

A patch is (height, width, channels) of values in [0, 1], with 1 or 3 channels. Colours have 3 bits per channel: a value
v is in bin min(floor(8 v), 7), and the class of a colour is 64 red + 8 green + blue; the paper does not specify either.
A grey image has 8 classes.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.compat.saved_objects import Accuracy

BINS = 8  # 3 bits per channel
COLORS = ("expected", "likeliest")


def cut_patches(images, grid_size):
    """Cut images (batch, height, width, channels) -> (batch, patches, height, width, channels), row by row."""
    height, width, channels = images.shape[1:]
    rows, columns = grid_size
    cells = ops.reshape(images, (-1, rows, height // rows, columns, width // columns, channels))
    return ops.reshape(
        ops.transpose(cells, (0, 1, 3, 2, 4, 5)), (-1, rows * columns, height // rows, width // columns, channels)
    )


def join_patches(patches, grid_size):
    """Join NumPy patches (batch, patches, height, width, channels) to images; the inverse of `cut_patches`."""
    rows, columns = grid_size
    batch, _, height, width, channels = patches.shape
    cells = patches.reshape(batch, rows, columns, height, width, channels).transpose(0, 1, 3, 2, 4, 5)
    return cells.reshape(batch, rows * height, columns * width, channels)


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
            raise ValueError(
                f"target='downsampled' needs patches whose sides are divisible by {self.side}; got patches of "
                f"{height} x {width} pixels"
            )
        return (*self._cells, BINS**channels)

    def of(self, patches):
        """Return the target of patches (batch, patches, height, width, channels)."""
        classes = color_classes(mean_colors(patches, self.side))
        return ops.reshape(classes, (-1, patches.shape[1], *self._cells))

    def loss(self):
        """Return the cross-entropy, averaged over corrupted patches and their cells."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self):
        """Return the accuracy over corrupted patches or their cells."""
        return [Accuracy()]

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

    def loss(self):
        """Return the squared error, averaged over corrupted patches and their pixels."""
        return keras.losses.MeanSquaredError()

    def metrics(self):
        """Return the mean absolute error of values in [0, 1]."""
        return [keras.metrics.MeanAbsoluteError()]

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
