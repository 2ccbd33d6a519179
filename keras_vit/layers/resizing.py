"""resize_maps: bilinear resizing of maps, with aligned corners or half-pixel centres, also of sizes known in a call."""

from keras import ops

from keras_vit.typing import Tensor


def resize_maps(maps: Tensor, size: tuple, align_corners: bool) -> Tensor:
    """Resize maps bilinearly, without antialiasing.

    Args:
        maps: (batch, rows, columns, channels).
        size: (rows, columns) wanted, integers or tensors.
        align_corners: whether the centres of the corners stay in place; otherwise pixels have half-pixel centres.

    Returns:
        (batch, *size, channels)
    """
    for axis, new in zip((1, 2), size, strict=True):
        maps = _resized(maps, axis, new, align_corners)
    return maps


def _resized(maps, axis, new, align_corners):
    old = ops.shape(maps)[axis]
    if isinstance(old, int) and isinstance(new, int) and old == new:
        return maps
    low, high, share = neighbours(old, new, align_corners)
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    share = ops.cast(ops.reshape(share, shape), maps.dtype)
    return ops.take(maps, low, axis) * (1 - share) + ops.take(maps, high, axis) * share


def neighbours(old, new, align_corners):
    """Return for each new row its two old rows, and the share of the second."""
    places = ops.cast(ops.arange(new), "float32")
    old, new = (ops.cast(side, "float32") for side in (old, new))
    if align_corners:
        centres = places * ((old - 1) / ops.maximum(new - 1, 1))
    else:
        centres = (places + 0.5) * (old / new) - 0.5
    centres = ops.clip(centres, 0, old - 1)
    low = ops.floor(centres)
    return ops.cast(low, "int32"), ops.cast(ops.minimum(low + 1, old - 1), "int32"), centres - low
