"""MaskedImages, the base class of models that predict patches of images, and what such models share."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import keep_beside_graph
from keras_vit.layers.patches import cut_patches
from keras_vit.models.base import Model
from keras_vit.models.encoders import described
from keras_vit.models.scanned import check_unscanned
from keras_vit.models.training_model import TrainingModel
from keras_vit.models.vit import VisionTransformer
from keras_vit.typing import Tensor

GREY = 0.5  # shown for a patch that the model does not see


def join_patches(patches, grid_size):
    """Join NumPy patches (batch, patches, height, width, channels) to images; the inverse of `cut_patches`."""
    rows, columns = grid_size
    batch, _, height, width, channels = patches.shape
    cells = patches.reshape(batch, rows, columns, height, width, channels).transpose(0, 1, 3, 2, 4, 5)
    return cells.reshape(batch, rows * height, columns * width, channels)


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """Hold the result of `reconstruct`, as NumPy arrays.

    Images are (batch, height, width, channels) with values in [0, 1].

    Attributes:
        images: the original images.
        corrupted: the images as the model sees them: a patch is grey if it is masked or has the learned embedding; if
            it has the embedding of another patch, that patch is shown.
        predicted: the images with the model's prediction in every corrupted patch, also in those whose embedding did
            not change.
        mask: (batch, rows, columns), True for corrupted patches.
    """

    images: np.ndarray
    corrupted: np.ndarray
    predicted: np.ndarray
    mask: np.ndarray


class MaskedImages(TrainingModel, Model):
    """Train an encoder to predict patches that it does not see or sees corrupted.

    A subclass defines `_usual()`, which returns the loss and the list of metrics for `compile`, and `_targets(images)`,
    which returns the values to predict for every patch, (batch, patches, ...).

    Args:
        encoder: the model to train.
        outputs: dict of symbolic functions of the encoder's input: `places`, the indices of the predicted patches
            (batch, places), and `predictions` of these patches (batch, places, ...).
        name: name of the Keras model.
        fixed: sequence of layers whose weights keep their values, although the model uses them.

    Shapes:
        as in the subclasses
    """

    _models = ("encoder",)
    _usual: Any
    _targets: Any

    def __init__(self, encoder: VisionTransformer, outputs: dict[str, Tensor], name: str, fixed: Any = ()) -> None:
        super().__init__(inputs=encoder.input, outputs=outputs, name=name)
        self.output_names = ["predictions"]  # the only output with a loss; two would prefix metric names in Keras 3.12
        used = {id(variable) for variable in self.variables}
        self._unused = frozenset(id(variable) for variable in encoder.variables if id(variable) not in used)
        self._fixed = self._unused | {id(variable) for layer in fixed for variable in layer.weights}
        self.encoder = encoder  # tracked as a sub-layer, so that it is saved completely
        keep_beside_graph(self, encoder)

    def compile(  # type: ignore[override] # the names are Keras's, the mixin's are *args
        self,
        optimizer: str | keras.optimizers.Optimizer = "rmsprop",
        loss: Any = None,
        *,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Configure the model for training as `keras_vit.Model.compile` does.

        Args:
            optimizer: as in `keras.Model.compile`.
            loss: None uses the model's own loss: the squared error of pixels, or the cross-entropy of colours. A custom
                loss compares targets and predictions of the corrupted or removed patches.
            metrics: None uses the model's own metrics: of a `MaskedPatchPrediction`, `accuracy`, the share of corrupted
                patches (cells for `downsampled`) that are predicted correctly, or `mean_absolute_error` for `pixels`;
                of a `MaskedAutoencoder`, none.
            **kwargs: as in `keras_vit.Model.compile`.
        """
        usual_loss, usual_metrics = self._usual()
        loss, metrics = usual_loss if loss is None else loss, usual_metrics if metrics is None else metrics
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, *self._compared(x, y_pred, sample_weight), training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, *self._compared(x, y_pred, sample_weight))

    def _compared(self, images, y_pred, sample_weight):
        """Return targets, predictions and weights of the corrupted patches."""
        places, predictions = y_pred["places"], y_pred["predictions"]
        targets = self._targets(images)
        places = ops.reshape(places, (-1, places.shape[1], *[1] * (len(targets.shape) - 2)))
        targets = ops.take_along_axis(targets, places, axis=1)
        if sample_weight is not None:  # one weight per image, for all its patches
            ones = ops.ones_like(predictions[..., 0])
            sample_weight = ops.cast(ops.reshape(sample_weight, (-1, *[1] * (len(ones.shape) - 1))), ones.dtype) * ones
        return targets, predictions, sample_weight

    def _untrained(self):
        return self._fixed

    def _patches(self, images):
        """Return the patches (batch, patches, height, width, channels) with values in [0, 1]."""
        mean, std = (np.array(values, "float32") for values in self.encoder.preprocessing.statistics)
        return cut_patches(ops.cast(images, "float32") * std + mean, self.encoder.config.grid_size)

    def _checked_images(self, images, seed):
        """Return the images as a float32 array; check their shape and the seed."""
        checks.check_integer("seed", seed, minimum=0)
        images, size = np.asarray(images, "float32"), self.encoder.input_shape[1:]
        if images.shape[1:] != size:
            raise ValueError(f"images must be of shape (batch, {', '.join(map(str, size))}); got {images.shape}")
        return images

    def _reconstruction(self, patches, corrupted, places, predicted):
        """Return a `Reconstruction` of NumPy patches with values in [0, 1], with `predicted` ones at `places`."""
        grid, rows, whole = self.encoder.config.grid_size, np.arange(len(patches))[:, None], patches.copy()
        whole[rows, places] = predicted
        mask = np.zeros(patches.shape[:2], bool)
        mask[rows, places] = True
        joined = (join_patches(each, grid) for each in (patches, corrupted, whole))
        return Reconstruction(*joined, mask.reshape(-1, *grid))


def check_encoder(encoder):
    """Return the shape (height, width, channels) of the image area that one token of the encoder covers."""
    if not isinstance(encoder, VisionTransformer):
        raise TypeError(f"encoder must be a keras_vit.VisionTransformer; got {described(encoder)}")
    check_unscanned(encoder)
    config = encoder.config
    if config.channels not in (1, 3):
        raise ValueError(f"encoder must take images of 1 or 3 channels; got {config.channels}")
    embedding = config.embedding
    if config.fixed_size is None or embedding.position_grid is not None or embedding.patch_drop_rate:
        raise ValueError(
            "encoder must take images of one size and have a position table for it (keras_vit.resize), and "
            f"embedding.patch_drop_rate must be 0; got image_size={config.image_size}, embedding.position_grid="
            f"{embedding.position_grid}, embedding.patch_drop_rate={embedding.patch_drop_rate}"
        )
    name = "grid_size" if config.stem else "patch_size"
    checks.check_divisible("image_size of encoder", config.image_size, f"its {name}", getattr(config, name))
    rows, columns = config.grid_size
    return config.image_size[0] // rows, config.image_size[1] // columns, config.channels
