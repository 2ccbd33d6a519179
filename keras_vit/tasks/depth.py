"""Depth: the size of the input of a depth model, and its answer as a map in pixels of the image."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.overlay import heat_map
from keras_vit.tasks.drawing import check_array, check_image, resize_map, scale_colours
from keras_vit.typing import Size

SIZE_RULES = ("nearest", "lower_bound", "stretch")
UNITS = ("metres", "disparity")


def depth_input_size(size: Size, target: Size = 518, multiple: int = 14, rule: str = "nearest") -> tuple[int, int]:
    """Return the size to which an image is resized for a depth model.

    Args:
        size: (height, width) of the image, or one integer for both.
        target: (height, width) wanted, or one integer for both.
        multiple: both sides become a multiple of it, such as the patch size.
        rule: `nearest` scales both sides by the factor that is nearer to 1, as transformers does with
            `keep_aspect_ratio`; `lower_bound` scales both by the larger factor, so that no side is below the target, as
            the Depth Anything authors do; `stretch` scales each side to the target.

    Returns:
        (height, width), at least one multiple each.

    Raises:
        ValueError: if a value is out of range or the rule is unknown.
    """
    size, target = checks.check_pair("size", size), checks.check_pair("target", target)
    checks.check_integer("multiple", multiple)
    checks.check_choice("rule", rule, SIZE_RULES)
    scales = [wanted / side for wanted, side in zip(target, size, strict=True)]
    if rule == "nearest":
        scales = [min(scales, key=lambda scale: abs(1 - scale))] * 2  # of equal distances the height's
    if rule == "lower_bound":
        scales = [max(scales)] * 2
    height, width = (
        _to_multiple(scale * side, multiple, wanted if rule == "lower_bound" else multiple)
        for scale, side, wanted in zip(scales, size, target, strict=True)
    )
    return height, width


def _to_multiple(side, multiple, least):
    """Return the nearest multiple (halves to even), or the next larger one if that is below `least`."""
    nearest = round(side / multiple) * multiple
    return nearest if nearest >= least else max(int(np.ceil(side / multiple)), 1) * multiple


def depth_map(values: npt.ArrayLike, size: Size, unit: str) -> "DepthMap":
    """Resize the output of a depth model to its image.

    The kernel is bicubic (a = -0.75) with half-pixel centres, without antialiasing.

    Args:
        values: (rows, columns), the output of the model for one image.
        size: (height, width) of the upright image.
        unit: `metres` or `disparity`.

    Raises:
        ValueError: on another shape, size or unit.
    """
    values, size = check_array("values", values, ("rows", "columns")), checks.check_pair("size", size)
    return DepthMap(resize_map(values, size, "bicubic"), unit)


@dataclasses.dataclass(frozen=True, eq=False)
class DepthMap:
    """Hold the depth of each pixel of an image.

    Attributes:
        values: float32 (height, width), for the pixels of the upright image.
        unit: `metres`, or `disparity`: inverse depth up to scale and shift, where large is near.

    Raises:
        ValueError: on another shape or unit.
    """

    values: np.ndarray
    unit: str

    def __post_init__(self) -> None:
        checks.check_choice("unit", self.unit, UNITS)
        values = check_array("values", self.values, ("height", "width")).astype("float32")
        object.__setattr__(self, "values", values)

    def draw(self, image: npt.ArrayLike | None = None) -> np.ndarray:
        """Draw the map in colours; what is near is bright.

        Args:
            image: (height, width, 1 or 3) or (height, width), to draw over: uint8, or floats in [0, 1].

        Returns:
            uint8 array (height, width, 3).

        Raises:
            ValueError: if the image has another size than the map.
        """
        near = self.values.astype("float64") * (-1 if self.unit == "metres" else 1)
        near = (near - near.min()) / (np.ptp(near) or 1)
        if image is None:
            return scale_colours(near)
        return heat_map(check_image(image, near.shape), near, smooth=False, quantile=1)

    def to_json(self) -> dict[str, Any]:
        """Return the map as a dict of plain Python values, for `json.dumps`."""
        height, width = self.values.shape
        return {"height": height, "width": width, "unit": self.unit, "values": self.values.tolist()}
