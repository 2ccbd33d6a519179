"""Depth: the answer of a depth model as a map in pixels of the image."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.tasks.drawing import check_array, check_image, resize_map, scale_colours
from keras_vit.typing import Size

UNITS = ("metres", "disparity")


def depth_map(values: npt.ArrayLike, size: Size, unit: str) -> "DepthMap":
    """Resize the output of a depth model to its image.

    The kernel is bicubic (a = -0.75) with half-pixel centres, without antialiasing.

    Args:
        values: (rows, columns), the output of the model for one image.
        size: (height, width) of the upright image.
        unit: `metres` or `disparity`.

    Returns:
        The `DepthMap`

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

    def __str__(self) -> str:
        return f"  {self.unit} from {self.values.min():.4g} to {self.values.max():.4g}"

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
        return scale_colours(near, None if image is None else check_image(image, near.shape))

    def to_json(self) -> dict[str, Any]:
        """Return the map as a dict of plain Python values, for `json.dumps`."""
        height, width = self.values.shape
        return {"height": height, "width": width, "unit": self.unit, "values": self.values.tolist()}
