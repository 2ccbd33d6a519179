"""The layers of SAM (arXiv 2304.02643, appendix A) after its image encoder: prompt encoder and mask decoder.

Points are (x, y) in pixels of the images that the encoder gets. `grid` is the image embedding's (rows, columns).
"""

import functools
import math
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer, build_in_sequence, head_width
from keras_vit.layers.forms import LayerNorm, check_in_call, gelu
from keras_vit.typing import Size, Tensor

BACKGROUND, FOREGROUND, TOP_LEFT, BOTTOM_RIGHT = range(4)  # labels of points, and of the corners of boxes
NO_POINT, IGNORED = -1, -10  # labels: a point that only fills a place, and one whose token is zero
POINT_LABELS = (IGNORED, NO_POINT, BACKGROUND, FOREGROUND)

_EPSILON = 1e-6  # of the norms of the mask embedding


@keras.saving.register_keras_serializable(package="keras_vit")
class PromptPlaces(Layer):
    """Return the places and labels of the points of prompts; boxes become their two corners, after the points.

    Pixel centres are at half integers, so 0.5 is added to coordinates before they become shares of the image. Without
    boxes, a point with label -1 is added, as in the training of SAM.

    Args:
        image_size: (height, width) of the images in pixels, or one integer for both.

    Shapes:
        image embeddings (batch, rows, columns, dim), of which only the batch size is read; points (batch, prompts,
        points, 2) and labels (batch, prompts, points), or None; boxes (batch, prompts, 4) as x0, y0, x1, y1, or None ->
        places (batch, prompts, tokens, 2) in [0, 1], float32, and labels (batch, prompts, tokens), int32; one prompt
        without tokens if points and boxes are None

    Raises:
        ValueError: if a value is out of range; if only one of points and labels is given; in eager calls, if a
            coordinate is outside the image, a label is unknown or the corners of a box are swapped.
    """

    def __init__(self, image_size: Size, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.configure(image_size=image_size)

    def call(
        self, embeddings: Tensor, points: Tensor = None, labels: Tensor = None, boxes: Tensor = None
    ) -> tuple[Tensor, Tensor]:
        _check_both(points, labels)
        height, width = self.image_size
        places, kinds = [], []
        if points is not None:
            points, labels = ops.cast(points, "float32"), ops.cast(labels, "int32")
            known = functools.partial(_is_among, labels, POINT_LABELS)
            labels = check_in_call(labels, f"labels must be among {POINT_LABELS}", known, lambda: labels)
            places.append(self._inside("points", points))
            kinds.append(labels)
        if boxes is not None:
            corners = ops.cast(boxes, "float32")
            corners = ops.reshape(corners, (*ops.shape(corners)[:2], 2, 2))
            message = "boxes must be (x0, y0, x1, y1) with x0 < x1 and y0 < y1"
            ordered = lambda: corners[..., 0, :] < corners[..., 1, :]  # noqa: E731
            places.append(check_in_call(self._inside("boxes", corners), message, ordered, lambda: boxes))
            kinds.append(ops.zeros_like(corners[..., 0], "int32") + ops.convert_to_tensor([TOP_LEFT, BOTTOM_RIGHT]))
        elif points is not None:
            places.append(ops.zeros_like(points[:, :, :1]))
            kinds.append(ops.full_like(labels[:, :, :1], NO_POINT))
        if not places:
            batch = ops.shape(embeddings)[0]
            return ops.zeros((batch, 1, 0, 2)), ops.zeros((batch, 1, 0), "int32")
        shares = (ops.concatenate(places, axis=2) + 0.5) / ops.convert_to_tensor([width, height], "float32")
        return shares, ops.concatenate(kinds, axis=2)

    def _inside(self, name, points):
        """Return points (..., 2), which must be in the image."""
        height, width = self.image_size
        limit = ops.convert_to_tensor([width, height], "float32")
        message = f"{name} must be in pixels of the image, x from 0 to {width} and y from 0 to {height}"
        return check_in_call(points, message, lambda: (points >= 0) & (points <= limit), lambda: points)

    def compute_output_spec(self, embeddings, points=None, labels=None, boxes=None):
        _check_both(points, labels)
        given = next((x for x in (points, boxes) if x is not None), None)
        lead = (embeddings.shape[0], 1) if given is None else given.shape[:2]
        return keras.KerasTensor((*lead, None, 2), "float32"), keras.KerasTensor((*lead, None), "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class GridPlaces(Layer):
    """Return the places of the cells of a map, as shares of the image.

    Shapes:
        (batch, rows, columns, dim) -> (1, rows, columns, 2): x and y of the centres, float32
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.configure()

    def call(self, maps: Tensor) -> Tensor:
        rows, columns = ops.shape(maps)[1:3]
        y, x = ((ops.cast(ops.arange(side), "float32") + 0.5) / ops.cast(side, "float32") for side in (rows, columns))
        return ops.stack(ops.meshgrid(x, y, indexing="xy"), axis=-1)[None]

    def compute_output_spec(self, maps):
        return keras.KerasTensor((1, *maps.shape[1:3], 2), "float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class FourierPositions(Layer):
    """Return random Fourier features of places (arXiv 2006.10739): sine and cosine of 2 pi (2 c - 1) G.

    G, `projection`, has values from N(0, 1) and is not trained. The layer computes in float32.

    Args:
        hidden_dim: width of the output, an even number.

    Shapes:
        (..., 2): x and y in [0, 1] -> (..., hidden_dim)

    Raises:
        ValueError: if `hidden_dim` is no positive even number.
    """

    def __init__(self, hidden_dim: int, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.configure(hidden_dim=hidden_dim)
        head_width(2, self.hidden_dim)

    def build(self, input_shape):
        normal = keras.initializers.RandomNormal(stddev=1.0)
        shape = (2, self.hidden_dim // 2)
        self.projection = self.add_weight(name="projection", shape=shape, initializer=normal, trainable=False)

    def call(self, places: Tensor) -> Tensor:
        angles = 2 * math.pi * ops.matmul(2 * places - 1, ops.cast(self.projection, places.dtype))
        return ops.cast(ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1), self.compute_dtype)

    def compute_output_spec(self, places):
        return keras.KerasTensor((*places.shape[:-1], self.hidden_dim), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class PointEmbedding(Layer):
    """Return the tokens of points: their positions plus a learned vector for each label.

    A point of label -1 has a learned vector without position, and one of label -10 is zero.

    Shapes:
        positions (batch, prompts, tokens, dim) and labels (batch, prompts, tokens), -10, -1 or 0 to 3 -> (batch,
        prompts, tokens, dim)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure()

    def build(self, input_shape, *others):
        names = ("background", "foreground", "top_left", "bottom_right", "no_point")
        self.vectors = [self.normal_weight(name, (1, input_shape[-1])) for name in names]

    def call(self, positions: Tensor, labels: Tensor) -> Tensor:
        tokens, labels = ops.zeros_like(positions), labels[..., None]
        for label, vector in zip((BACKGROUND, FOREGROUND, TOP_LEFT, BOTTOM_RIGHT, NO_POINT), self.vectors, strict=True):
            vector = ops.cast(vector, positions.dtype)
            added = ops.zeros_like(positions) + vector if label == NO_POINT else positions + vector
            tokens = ops.where(ops.equal(labels, label), added, tokens)
        return tokens

    def compute_output_spec(self, positions, labels):
        return keras.KerasTensor(positions.shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaskEmbedding(Layer):
    """Return the map of an earlier mask, which is added to the image embedding, or a learned vector without a mask.

    Two 2 x 2 convolutions with stride 2, each followed by a norm (epsilon 1e-6) and GELU (exact), and a 1 x 1
    convolution.

    Args:
        mask_channels: number of channels of the second convolution; the first has a quarter of them.

    Shapes:
        image embeddings (batch, rows, columns, dim), and logits of masks (batch, prompts, 4 * rows, 4 * columns), or
        None -> (batch, prompts, rows, columns, dim); one prompt without masks

    Raises:
        ValueError: if `mask_channels` is no positive multiple of 4.
    """

    def __init__(self, mask_channels: int = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(mask_channels=mask_channels)
        checks.check_divisible("mask_channels", (self.mask_channels,), "4", (4,))

    def build(self, input_shape, *others):
        width, dim = self.mask_channels, input_shape[-1]
        conv1, conv2 = (
            self.conv(filters, 2, name, "glorot_uniform", strides=2)
            for filters, name in ((width // 4, "conv1"), (width, "conv2"))
        )
        norm1, norm2 = (self.sublayer(LayerNorm, epsilon=_EPSILON, name=name) for name in ("norm1", "norm2"))
        conv3 = self.conv(dim, 1, "conv3", "glorot_uniform")
        self.steps = [conv1, norm1, conv2, norm2, conv3]
        build_in_sequence((None, None, None, 1), *self.steps)
        self.no_mask = self.normal_weight("no_mask", (1, dim))

    def call(self, embeddings: Tensor, masks: Tensor = None) -> Tensor:
        if masks is None:
            return ops.zeros_like(embeddings)[:, None] + ops.cast(self.no_mask, embeddings.dtype)
        batch, prompts, rows, columns = ops.shape(masks)
        conv1, norm1, conv2, norm2, conv3 = self.steps
        x = ops.reshape(masks, (batch * prompts, rows, columns, 1))
        for conv, norm in ((conv1, norm1), (conv2, norm2)):
            x = gelu(norm(conv(x)), False)
        return ops.reshape(conv3(x), (batch, prompts, rows // 4, columns // 4, embeddings.shape[-1]))

    def compute_output_spec(self, embeddings, masks=None):
        batch, *others = embeddings.shape
        return keras.KerasTensor((batch, 1 if masks is None else masks.shape[1], *others), self.compute_dtype)


def _check_both(points, labels):
    """Raise `ValueError` if only one of points and labels is given."""
    if (points is None) != (labels is None):
        missing, given = ("labels", "points") if labels is None else ("points", "labels")
        raise ValueError(f"{missing} must be given with {given}, one label for each point; got {missing}=None")


def _is_among(labels, known):
    return functools.reduce(ops.logical_or, [ops.equal(labels, label) for label in known])
