"""The heads of OWL-ViT (arXiv 2205.06230) and OWLv2 (arXiv 2306.09683): classes, boxes, and queries from examples."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import Layer
from keras_vit.typing import Tensor

BLANK_LOGIT = float(np.finfo("float32").min)  # of a query without a text
_NORM_EPSILON = 1e-6
_BIAS_EPSILON = 1e-4
_SHARE = 0.8  # of the best overlap that the box of an example must have


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassTokenProduct(Layer):
    """Return the patch tokens, each multiplied channel by channel by the class token (appendix A1.1).

    Shapes:
        (batch, 1 + patches, dim), the class token first -> (batch, patches, dim)
    """

    def call(self, tokens: Tensor) -> Tensor:
        return tokens[:, 1:] * tokens[:, :1]

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        return (batch, tokens and tokens - 1, dim)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassHead(Layer):
    """Return what `QueryLogits` needs of each patch: an embedding, a shift and a scale.

    All three are dense layers. The scale is the ELU of its dense layer, plus 1, so it is above 0.

    Args:
        width: width of the embeddings of queries.

    Shapes:
        (batch, patches, dim) -> embeddings (batch, patches, width), shifts and scales (batch, patches, 1)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(width=width)
        self.embedding = self.dense(self.width, "embedding")
        self.shift = self.dense(1, "shift")
        self.scale = self.dense(1, "scale")

    def build(self, input_shape):
        for layer in (self.embedding, self.shift, self.scale):
            layer.build(input_shape)

    def call(self, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.embedding(patches), self.shift(patches), ops.elu(self.scale(patches)) + 1.0

    def compute_output_shape(self, input_shape):
        places = input_shape[:-1]
        return (*places, self.width), (*places, 1), (*places, 1)


@keras.saving.register_keras_serializable(package="keras_vit")
class QueryLogits(Layer):
    """Return the logits of queries: (cosine + shift) * scale of each patch.

    For the cosine, both embeddings are divided by their L2 norm plus `epsilon`. A query of zeros stands for no query;
    its logits are the lowest number of float32.

    Args:
        epsilon: number that is added to the L2 norms.

    Shapes:
        embeddings (batch, patches, width), shifts and scales (batch, patches, 1), see `ClassHead`, and queries (batch,
        queries, width) -> (batch, patches, queries)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, epsilon: float = _NORM_EPSILON, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(epsilon=epsilon)

    def call(self, embeddings: Tensor, shifts: Tensor, scales: Tensor, queries: Tensor) -> Tensor:
        cosines = ops.einsum("bpd,bqd->bpq", unit(embeddings, self.epsilon), unit(queries, self.epsilon))
        is_blank = ops.all(ops.equal(queries, 0), axis=-1)[:, None]
        return ops.where(is_blank, BLANK_LOGIT, (cosines + shifts) * scales)

    def compute_output_shape(self, embeddings_shape, shifts_shape, scales_shape, queries_shape):
        return (*embeddings_shape[:-1], queries_shape[1])


@keras.saving.register_keras_serializable(package="keras_vit")
class CellBoxes(Layer):
    """Return boxes from what a head predicts relative to the cell of each patch.

    The sum of the prediction and of `cell_bias` goes through a sigmoid.

    Shapes:
        predictions (batch, patches, 4) and a map (batch, rows, columns, dim), of which only the size is read -> (batch,
        patches, 4): centre x, centre y, width and height as shares of the image
    """

    def call(self, predictions: Tensor, maps: Tensor) -> Tensor:
        rows, columns = ops.shape(maps)[1:3]
        return ops.sigmoid(predictions + ops.cast(cell_bias(rows, columns), predictions.dtype))

    def compute_output_shape(self, predictions_shape, maps_shape):
        return predictions_shape


def cell_bias(rows: Any, columns: Any) -> Tensor:
    """Return the logits of the boxes that each cell of a grid predicts by default.

    Such a box has the size of the cell, and its centre is the lower right corner of the cell, not the centre of it, as
    in the published code. The logit of a share c is log(c + 1e-4) - log1p(-c + 1e-4), in float32.

    Args:
        rows, columns: size of the grid, integers or tensors.

    Returns:
        (rows * columns, 4): centre x, centre y, width, height; row by row
    """
    height, width = (1.0 / ops.cast(count, "float32") for count in (rows, columns))
    y, x = (ops.cast(ops.arange(1, count + 1), "float32") / ops.cast(count, "float32") for count in (rows, columns))
    flat = ops.zeros((rows, columns), "float32")
    shares = ops.stack([flat + x[None], flat + y[:, None], flat + width, flat + height], axis=-1)
    shares = ops.clip(ops.reshape(shares, (-1, 4)), 0.0, 1.0)
    return ops.log(shares + _BIAS_EPSILON) - ops.log1p(_BIAS_EPSILON - shares)


def unit(x: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return vectors (..., dim) divided by their L2 norm plus `epsilon`; vectors of zeros stay zeros.

    Args:
        x: the vectors.
        epsilon: number that is added to the norm.
    """
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    is_zero = ops.equal(squares, 0)  # the gradient of a root at 0 is infinite
    norms = ops.sqrt(ops.where(is_zero, 1.0, squares))
    return x / (norms + epsilon)


def best_example(boxes: Tensor, embeddings: Tensor, objectness: Tensor | None = None) -> Tensor:
    """Return the index of the patch that describes the object of an example image.

    With objectness (OWLv2), it is the patch with the highest one. Without (OWL-ViT), the candidates are the patches
    whose box overlaps with the whole image by at least 0.8 of the best overlap. The overlap is the IoU, or the
    generalised IoU (arXiv 1902.09630) if no box of the image has an IoU above 0. Of the candidates, it is the one whose
    embedding has the smallest product with the mean embedding of the image.

    Args:
        boxes: (batch, patches, 4), see `CellBoxes`.
        embeddings: (batch, patches, width), see `ClassHead`.
        objectness: logits (batch, patches), or None.

    Returns:
        integers (batch,)
    """
    if objectness is not None:
        return ops.argmax(objectness, axis=-1)
    overlaps = _overlaps(boxes)
    best = ops.max(overlaps, axis=-1, keepdims=True)
    is_candidate = ops.logical_or(overlaps >= _SHARE * best, ops.equal(overlaps, best))
    likeness = ops.einsum("bpd,bd->bp", embeddings, ops.mean(embeddings, axis=1))
    return ops.argmin(ops.where(is_candidate, likeness, np.inf), axis=-1)


def _overlaps(boxes):
    """Return the IoU of each box with the whole image, or the generalised IoU if all are 0: (batch, patches)."""
    low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    shared = ops.prod(ops.maximum(ops.minimum(high, 1.0) - ops.maximum(low, 0.0), 0.0), axis=-1)
    union = ops.prod(high - low, axis=-1) + 1.0 - shared
    hull = ops.prod(ops.maximum(high, 1.0) - ops.minimum(low, 0.0), axis=-1)
    iou = shared / union
    return ops.where(ops.any(iou > 0, axis=-1, keepdims=True), iou, iou - (hull - union) / hull)
