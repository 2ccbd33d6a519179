"""Losses of task models whose output is one map for each image: depth and heatmaps."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.typing import Tensor

_TINY = 1e-6


@keras.saving.register_keras_serializable(package="keras_vit")
class SiLogLoss(keras.losses.Loss):
    """Compare depths in metres by the scale-invariant error of their logarithms.

    The source is arXiv 1406.2283, Eq. 4. For each image, with d the difference of the logarithms at the pixels with a
    depth: sqrt(mean(d^2) - share * mean(d)^2). This is how the metric models of Depth Anything are trained, though
    their code joins the pixels of all images of a batch. Pixels whose depth is 0 or less, or not finite, have none; an
    image without a depth counts 0.

    Args:
        share: share of the mean error that is forgiven, in [0, 1]; with 1, a depth times a factor has no error.
        smallest: least depth in metres that an output counts as, above 0.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        depths and outputs (batch, rows, columns) -> (batch,) before the reduction

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, share: float = 0.5, smallest: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.share = checks.check_number("share", share, "number in [0, 1]", lambda x: 0 <= x <= 1)
        self.smallest = checks.check_positive("smallest", smallest)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        depths, is_known = _known(y_true, y_pred)
        outputs = ops.log(ops.maximum(ops.cast(y_pred, "float32"), self.smallest))
        difference = ops.where(is_known, outputs - ops.log(ops.where(is_known, depths, 1.0)), 0.0)
        mean, square = _mean(difference, is_known), _mean(difference**2, is_known)
        return ops.sqrt(ops.maximum(square - self.share * mean**2, _TINY**2))

    def get_config(self):
        return {**super().get_config(), "share": self.share, "smallest": self.smallest}


@keras.saving.register_keras_serializable(package="keras_vit")
class ScaleShiftInvariantLoss(keras.losses.Loss):
    """Compare disparities and their gradients, up to a scale and a shift.

    This is the loss of MiDaS (arXiv 1907.01341) as in Depth Anything V2 (arXiv 2406.09414). Disparities and outputs are
    aligned for each image: the median becomes 0, and the mean distance from it 1. With R the difference of both: mean
    |R|, plus `gradient_weight` times the mean |dR/dx| + |dR/dy|, of R and of R with every 2nd, 4th and 8th pixel.
    Pixels whose disparity is 0 or less, or not finite, have none.

    Args:
        gradient_weight: at least 0; 2 in Depth Anything V2, section 5.
        scales: number of resolutions whose gradients are compared.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        disparities and outputs (batch, rows, columns) -> (batch,) before the reduction

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, gradient_weight: float = 2.0, scales: int = 4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gradient_weight = checks.check_number(
            "gradient_weight", gradient_weight, "number of at least 0", lambda x: x >= 0
        )
        self.scales = checks.check_integer("scales", scales)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        disparities, is_known = _known(y_true, y_pred)
        difference = _aligned(ops.cast(y_pred, "float32"), is_known) - _aligned(disparities, is_known)
        difference = ops.where(is_known, difference, 0.0)
        loss, count = _mean(ops.abs(difference), is_known), _mean(ops.ones_like(difference), is_known)
        for scale in range(self.scales):
            step = 2**scale
            part, known = difference[:, ::step, ::step], is_known[:, ::step, ::step]
            loss = loss + self.gradient_weight * (_slope(part, known, 1) + _slope(part, known, 2))
        return loss * count  # 0 without a disparity

    def get_config(self):
        return {**super().get_config(), "gradient_weight": self.gradient_weight, "scales": self.scales}


@keras.saving.register_keras_serializable(package="keras_vit")
class HeatmapLoss(keras.losses.Loss):
    """Compare heatmaps with Gaussians around the keypoints, as ViTPose.

    The loss is the mean squared error. The first and last pixels of heatmaps and input have the same centres (arXiv
    1911.07524), as in `keypoints`.

    Args:
        size: (height, width) of the input in pixels, or one integer for both.
        sigma: standard deviation in pixels of the heatmap; a Gaussian ends at 3 of them.
        **kwargs: arguments of `keras.losses.Loss`, such as `reduction`.

    Shapes:
        keypoints (batch, keypoints, 3): x and y in pixels of the input, and the visibility, of which 0 means that a
        keypoint does not count; and heatmaps (batch, rows, columns, keypoints) -> (batch,) before the reduction

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, size: Any, sigma: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = checks.check_pair("size", size)
        self.sigma = checks.check_positive("sigma", sigma)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        points, sides = ops.cast(y_true, "float32"), ops.shape(y_pred)[1:3]
        places = [points[..., axis] * (side - 1) / max(whole - 1, 1) for axis, side, whole in _axes(sides, self.size)]
        away = [
            ops.arange(side, dtype="float32")[None, :, None] - place[:, None]
            for side, place in zip(sides[::-1], places, strict=True)
        ]
        near = [ops.where(ops.abs(one) <= math.ceil(3 * self.sigma), one, float("inf")) for one in away]
        across, down = (ops.exp(-0.5 * (one / self.sigma) ** 2) for one in near)
        expected = down[:, :, None] * across[:, None]
        counts = ops.cast(points[:, None, None, :, 2] > 0, "float32")
        return ops.mean(counts * (ops.cast(y_pred, "float32") - expected) ** 2, axis=(1, 2, 3))

    def get_config(self):
        return {**super().get_config(), "size": self.size, "sigma": self.sigma}


def _axes(sides, size):
    """Return (axis of a point, side of the heatmap, side of the input) for x and y."""
    return zip((0, 1), sides[::-1], size[::-1], strict=True)


def _known(y_true, y_pred):
    """Return the expected map, 0 where it is unknown, and where it is known."""
    y_true = ops.cast(y_true, "float32")
    if len(y_true.shape) != 3 or len(y_pred.shape) != 3:
        raise ValueError(f"maps must be (batch, rows, columns); got {tuple(y_true.shape)} and {tuple(y_pred.shape)}")
    is_known = ops.logical_and(ops.isfinite(y_true), y_true > 0)
    return ops.where(is_known, y_true, 0.0), is_known


def _mean(values, where):
    """Return the mean of values (batch, rows, columns) for each image; 0 if there are none."""
    count = ops.sum(ops.cast(where, "float32"), axis=(1, 2))
    return ops.sum(ops.where(where, values, 0.0), axis=(1, 2)) / ops.maximum(count, 1.0)


def _aligned(values, where):
    """Return values with the median 0 and the mean absolute value 1 at the known pixels of each image."""
    flat = ops.reshape(ops.where(where, values, float("inf")), (ops.shape(values)[0], -1))
    count = ops.sum(ops.cast(where, "int32"), axis=(1, 2))
    middle = ops.take_along_axis(ops.sort(flat, axis=-1), ops.maximum(count - 1, 0)[:, None] // 2, axis=-1)
    middle = ops.where(ops.isfinite(middle), middle, 0.0)[:, :, None]
    centred = ops.where(where, values - middle, 0.0)
    return centred / ops.maximum(_mean(ops.abs(centred), where), _TINY)[:, None, None]


def _slope(values, where, axis):
    """Return the mean absolute difference of neighbours along an axis, where both are known, for each image."""
    before, after = [slice(None)] * 3, [slice(None)] * 3
    before[axis], after[axis] = slice(None, -1), slice(1, None)
    both = ops.logical_and(where[tuple(before)], where[tuple(after)])
    return _mean(ops.abs(values[tuple(after)] - values[tuple(before)]), both)
