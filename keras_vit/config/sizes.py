"""Rules by which the size of an image becomes that of the input of a task model."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

# function of NumPy, or of TensorFlow for its tensors; of (height, width) of the image and `size`, both float64; and of
# `longest` and `multiple`; to (height, width), float64
Rule = Callable[[ModuleType, Any, Any, int | None, int], Any]


def _stretched(xp, size, target, longest, multiple):
    """Each side becomes the wanted one."""
    return xp.maximum(xp.round(target / multiple), 1) * multiple


def _nearest(xp, size, target, longest, multiple):
    """Both sides are scaled by the factor that is nearer to 1; of equal distances, by that of the height."""
    scales = target / size
    scale = xp.where(xp.abs(1 - scales[1]) < xp.abs(1 - scales[0]), scales[1], scales[0])
    return xp.maximum(xp.round(scale * size / multiple), 1) * multiple


def _lower_bound(xp, size, target, longest, multiple):
    """Both sides are scaled by the larger factor, and no side is below the wanted one."""
    scales = target / size
    count = xp.maximum(scales[0], scales[1]) * size / multiple
    return multiple * xp.where(xp.round(count) * multiple >= target, xp.round(count), -xp.floor(-count))


def _shortest(xp, size, target, longest, multiple):
    """The shorter side becomes the wanted one, or, if the longer one would exceed `longest`, the longer one does.

    The order of the operations is that of transformers, whose rounding shows in the sizes.
    """
    short, long = xp.minimum(size[0], size[1]), xp.maximum(size[0], size[1])
    exact, most = min(target), np.inf if longest is None else float(longest)
    if longest is not None:
        exact = xp.where(long / short * exact > most, most * short / long, exact)
    wanted = xp.round(exact)
    other = xp.minimum(xp.where(wanted == short, long, xp.floor(exact * long / short)), most)
    sides = xp.where(size[0] <= size[1], xp.stack([wanted, other]), xp.stack([other, wanted]))
    return xp.maximum(sides // multiple, 1) * multiple


def padded(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Return the largest size inside the wanted one, halves rounded up.

    Args:
        size: (height, width) of the image.
        target: (height, width) that is wanted.
    """
    scale = min(wanted / side for wanted, side in zip(target, size, strict=True))
    height, width = (max(int(side * scale + 0.5), 1) for side in size)
    return height, width


RULES: dict[str, Rule] = {
    "stretch": _stretched,
    "nearest": _nearest,
    "lower_bound": _lower_bound,
    "shortest": _shortest,
    "longest": lambda xp, size, target, longest, multiple: _shortest(xp, size, target, max(target), multiple),
    "windows": _shortest,
    "center_padding": lambda xp, size, target, longest, multiple: size,
    "square": _stretched,
    "box": _stretched,
}
