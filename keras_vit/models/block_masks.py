"""Block masks of DINOv2: which patches of which global crops the student does not see (facebookresearch/dinov2).

Random numbers in [0, 1) are arguments, so that masks are a function of them: a model draws them with its own
`keras.random.SeedGenerator`, whose state the checkpoints of a run contain.
"""

import math

import numpy as np
from keras import ops

from keras_vit.typing import Tensor

_FAILURES = 10  # successive tries without a new block, after which a mask stays as it is
_LOG_RATIO = math.log(0.3)  # of the narrowest block; aspect ratios are log-uniform in [0.3, 1 / 0.3]


def requested_patches(
    draws: Tensor, patches: int, ratios: tuple[float, float] = (0.1, 0.5), share: float = 0.5
) -> Tensor:
    """Draw how many patches each crop masks.

    `int(share * crops)` crops are masked, in random order. Their ratios are stratified: [low, high] is divided into as
    many equal parts as crops are masked, and each of them draws its ratio from its own part.

    Args:
        draws: random numbers in [0, 1), (2, crops): for the ratios, and for the order.
        patches: number of patches of a crop.
        ratios: (low, high), the range of the masked share of a crop.
        share: of the crops that are masked, in [0, 1].

    Returns:
        int32 (crops,); 0 for crops without a mask.
    """
    places = ops.cast(ops.argsort(draws[1]), "float32")
    masked = ops.floor(share * ops.cast(ops.shape(draws)[1], "float32"))
    drawn = ratios[0] + (ratios[1] - ratios[0]) * (places + draws[0]) / ops.maximum(masked, 1.0)
    return ops.where(places < masked, ops.cast(patches * drawn, "int32"), 0)


def most_masked_patches(crops: int, patches: int, ratios: tuple[float, float] = (0.1, 0.5), share: float = 0.5) -> int:
    """Return the largest sum of `requested_patches` over the crops, the size of a buffer of masked patches.

    Args:
        crops, patches: number of crops, and of the patches of one.
        ratios, share: as in `requested_patches`.
    """
    highest = np.linspace(*ratios, int(crops * share) + 1, dtype="float32")[1:]
    return int(np.floor(patches * highest).sum())


def block_masks(
    draws: Tensor, requests: Tensor, grid: tuple[int, int], *, minimum: int = 4, maximum: float | None = None
) -> Tensor:
    """Mask blocks of patches until each crop has as many masked patches as requested.

    Each try draws the area and the aspect ratio of a block, and its place. It is used if it is smaller than the grid
    and adds at least one patch, and not more than are missing. A mask ends when it is complete, or after 10 successive
    tries in vain. It never has more patches than requested, and may have fewer.

    Args:
        draws: random numbers in [0, 1), (tries, 4, crops): for area, aspect ratio, row and column. The loop ends after
            the last try. 64 tries are enough: of 1500 masks of up to 37 x 37 patches, none took more than 38.
        requests: (crops,), as from `requested_patches`.
        grid: (rows, columns) of patches.
        minimum: least patches in a block, before the aspect ratio rounds its sides.
        maximum: most patches in a block; None means half of all patches.

    Returns:
        bool (crops, rows, columns); True is masked.
    """
    rows, columns = grid
    maximum = rows * columns / 2 if maximum is None else maximum
    y, x = np.arange(rows, dtype="float32")[:, None], np.arange(columns, dtype="float32")
    wanted = ops.cast(requests, "float32")

    def missing(masks):
        return wanted - ops.sum(ops.cast(masks, "float32"), axis=(1, 2))

    def is_unfinished(number, masks, failures):
        return ops.logical_and(number < draws.shape[0], ops.any((missing(masks) > 0) & (failures < _FAILURES)))

    def next_try(number, masks, failures):
        area, ratio, top, left = ops.unstack(ops.take(draws, number, axis=0), 4)
        limit = ops.minimum(missing(masks), maximum)
        area = minimum + area * (ops.maximum(limit, 1.0) - minimum)
        ratio = ops.exp(_LOG_RATIO * (1 - 2 * ratio))
        height, width = (ops.round(ops.sqrt(square)) for square in (area * ratio, area / ratio))
        fits = (height < rows) & (width < columns) & (failures < _FAILURES)
        top, left = (ops.floor(u * (rest + 1)) for u, rest in ((top, rows - height), (left, columns - width)))
        top, left, height, width = (one[:, None, None] for one in (top, left, height, width))
        new = (y >= top) & (y < top + height) & (x >= left) & (x < left + width) & ~masks
        added = ops.sum(ops.cast(new, "float32"), axis=(1, 2))
        is_used = fits & (added > 0) & (added <= limit)
        return number + 1, masks | (new & is_used[:, None, None]), ops.where(is_used, 0, failures + 1)

    none = ops.zeros((ops.shape(requests)[0], rows, columns), "bool")
    start = 0, none, ops.zeros_like(requests, dtype="int32")
    return ops.while_loop(is_unfinished, next_try, start)[1]


def masked_places(masks: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return where the masked patches are, in a buffer of a fixed size.

    Args:
        masks: bool (crops, rows, columns).
        size: of the buffer, see `most_masked_patches`.

    Returns:
        int32 (size,), the places of masked patches in the flattened masks, ascending; and float32 (size,), their
        weights: 1 / masked patches of the crop, 0 for the places after the last masked patch.
    """
    values = ops.reshape(ops.cast(masks, "float32"), (-1, masks.shape[1] * masks.shape[2]))
    weights = ops.reshape(values / ops.maximum(ops.sum(values, axis=1, keepdims=True), 1.0), (-1,))
    places = ops.top_k(ops.reshape(values, (-1,)), size)[1]  # of equal values, the first comes first
    return places, ops.take(weights, places)
