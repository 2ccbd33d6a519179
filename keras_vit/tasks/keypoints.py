"""Keypoints: the crop around a person for ViTPose, and its heatmaps as keypoints in pixels of the image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from keras_vit import checks
from keras_vit.analysis.overlay import as_uint8
from keras_vit.tasks.drawing import check_array, check_names, label_colour
from keras_vit.typing import Size

# program -> standard deviation of its blur of the heatmaps, in their pixels, and the mode of `np.pad` for its border
BLURS = {"authors": (2.0, "reflect"), "transformers": (0.8, "symmetric")}
_RADIUS = 5  # taps of the blur on each side
_RANGE = (1e-3, 50.0)  # of a heatmap before its logarithm
_TINY = float(np.finfo("float32").eps)  # added to the diagonal of the Hessian


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """Hold the part of an image that a crop shows.

    Attributes:
        centre: float64 (2,), x and y in pixels of the upright image.
        extent: float64 (2,), width and height.
    """

    centre: np.ndarray
    extent: np.ndarray

    def to_image(self, xy: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Map places (..., 2) of a crop or heatmap of a size (height, width) to the image.

        The first and last pixels of the crop lie on the edges of the region.
        """
        last = np.maximum(np.array(size[::-1]) - 1, 1)
        return xy * (self.extent / last) + self.centre - 0.5 * self.extent


def person_region(box: npt.ArrayLike, size: Size = (256, 192), enlargement: float = 1.25) -> Region:
    """Return the region around a person that a crop of a size shows.

    Args:
        box: left edge, top edge, width and height in pixels (COCO).
        size: (height, width) of the crop; the box is widened to this aspect ratio.
        enlargement: factor of the widened box.

    Raises:
        ValueError: on another shape or range.
    """
    x, y, width, height = np.asarray(check_array("box", box, (4,)), "float64")
    rows, columns = checks.check_pair("size", size)
    if min(width, height) <= 0:
        raise ValueError(f"box must have a width and height above 0; got {box!r}")
    centre = np.array([x + width / 2, y + height / 2])
    width, height = max(width, height * columns / rows), max(height, width * rows / columns)
    return Region(centre, np.array([width, height]) * checks.check_positive("enlargement", enlargement))


def crop(image: npt.ArrayLike, region: Region, size: Size = (256, 192)) -> np.ndarray:
    """Return the crop of a region, bilinear, with black pixels outside the image.

    Args:
        image: (height, width, 1 or 3) or (height, width), upright: uint8, or floats in [0, 1].
        region: result of `person_region`.
        size: (height, width) of the crop.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on another shape or range.
    """
    pixels, size = as_uint8("image", image), checks.check_pair("size", size)
    corners = region.to_image(np.stack([np.arange(max(size))] * 2, -1), size)
    horizontal, vertical = (_taps(corners[:new, axis], old) for axis, new, old in _axes(size, pixels.shape))
    values = np.einsum("yr,xc,rcd->yxd", vertical, horizontal, pixels.astype("float64"), optimize=True)
    return np.floor(values + 0.5).astype("uint8")


def _axes(size, shape):
    return (0, size[1], shape[1]), (1, size[0], shape[0])


def _taps(places, old):
    """Return the matrix (places, old) of linear interpolation; places outside the pixels have no weights."""
    weights = np.maximum(1 - np.abs(places[:, None] - np.arange(old)), 0)
    return weights * ((places >= 0) & (places <= old - 1))[:, None]


def flip_average(heatmaps: npt.ArrayLike, flipped: npt.ArrayLike, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Average heatmaps with those of the mirrored image (the flip test).

    Args:
        heatmaps: (..., rows, columns, keypoints).
        flipped: the same for the mirrored image.
        pairs: indices of the left and right keypoints that change places.

    Raises:
        ValueError: if the shapes differ or a pair has no keypoint.
    """
    heatmaps, flipped = np.asarray(heatmaps), np.asarray(flipped)
    if heatmaps.shape != flipped.shape or heatmaps.ndim < 3:
        raise ValueError(f"flipped must have the shape {heatmaps.shape} of heatmaps; got {flipped.shape}")
    order = np.arange(heatmaps.shape[-1])
    for left, right in pairs:
        for index in (left, right):
            checks.check_integer("pairs", index, minimum=0, maximum=len(order) - 1)
        order[[left, right]] = right, left
    return (heatmaps + flipped[..., ::-1, order]) / 2


def heatmap_peaks(heatmaps: npt.ArrayLike, blur: str = "authors") -> tuple[np.ndarray, np.ndarray]:
    """Return the peak of each heatmap, refined below a pixel (DARK, arXiv 1910.06278).

    A Newton step from the largest pixel, on the logarithm of the blurred heatmap, gives the peak.

    Args:
        heatmaps: (rows, columns, keypoints).
        blur: `authors` blurs with a standard deviation of 2 pixels, as the ViTPose authors do; `transformers` with 0.8.

    Returns:
        Tuple of (keypoints, 2), x and y in pixels of the heatmap, and the largest values (keypoints,).

    Raises:
        ValueError: on another shape, or if the blur is unknown.
    """
    checks.check_choice("blur", blur, BLURS)
    heatmaps = check_array("heatmaps", heatmaps, ("rows", "columns", "keypoints"))
    rows, columns, count = heatmaps.shape
    flat = heatmaps.reshape(-1, count)
    y, x = np.divmod(flat.argmax(0), columns)
    vertical, horizontal = (_blur(side, *BLURS[blur]) for side in (rows, columns))
    smooth = np.einsum("yr,xc,rck->yxk", vertical, horizontal, heatmaps, optimize=True)
    logs = np.log(np.clip(smooth, *_RANGE))

    def at(right, down):
        return logs[np.clip(y + down, 0, rows - 1), np.clip(x + right, 0, columns - 1), np.arange(count)]

    gradient = np.stack([at(1, 0) - at(-1, 0), at(0, 1) - at(0, -1)], -1) / 2
    xx, yy = (at(*step) - 2 * at(0, 0) + at(-step[0], -step[1]) for step in ((1, 0), (0, 1)))
    xy = (at(1, 1) + at(-1, -1) + 2 * at(0, 0) - at(1, 0) - at(-1, 0) - at(0, 1) - at(0, -1)) / 2
    hessian = np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -1) + _TINY * np.eye(2)
    step = np.einsum("kij,kj->ki", np.linalg.pinv(hessian), gradient)
    return np.stack([x, y], -1) - step, flat.max(0)


def _blur(side, sigma, border):
    """Return the matrix (side, side) of a Gaussian blur."""
    weights = np.exp(-0.5 * (np.arange(-_RADIUS, _RADIUS + 1) / sigma) ** 2)
    padded = np.pad(np.eye(side), ((_RADIUS, _RADIUS), (0, 0)), mode=border)
    return sum(weight * padded[tap : tap + side] for tap, weight in enumerate(weights / weights.sum()))


def keypoints(
    heatmaps: npt.ArrayLike,
    region: Region,
    blur: str = "authors",
    names: Sequence[str] | None = None,
) -> "Keypoints":
    """Return the keypoints of one person.

    Args:
        heatmaps: (rows, columns, keypoints), the output of the model, or the result of `flip_average`.
        region: the region of the crop, see `person_region`.
        blur: as in `heatmap_peaks`.
        names: names of the keypoints.

    Raises:
        ValueError: on another shape, or if the blur is unknown.
    """
    xy, scores = heatmap_peaks(heatmaps, blur)
    rows, columns = np.shape(heatmaps)[:2]
    return Keypoints(region.to_image(xy, (rows, columns)), scores, check_names("names", names, len(scores)))


@dataclasses.dataclass(frozen=True, eq=False)
class Keypoints:
    """Hold the keypoints of one person.

    Attributes:
        xy: float32 (keypoints, 2), in pixels of the upright image.
        scores: float32 (keypoints,), the largest values of the heatmaps.
        names: names of the keypoints, or None.

    Raises:
        ValueError: if the lengths differ.
    """

    xy: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.scores)
        object.__setattr__(self, "xy", check_array("xy", self.xy, (count, 2)).astype("float32"))
        object.__setattr__(self, "scores", check_array("scores", self.scores, (count,)).astype("float32"))
        object.__setattr__(self, "names", check_names("names", self.names, count))

    def draw(self, image: npt.ArrayLike, threshold: float = 0.3) -> np.ndarray:
        """Draw a dot for each keypoint over an image.

        Args:
            image: (height, width, 1 or 3) or (height, width), upright: uint8, or floats in [0, 1].
            threshold: keypoints with lower scores are not drawn.

        Returns:
            uint8 array (height, width, 3).

        Raises:
            ValueError: on another shape or range.
        """
        picture = Image.fromarray(np.array(as_uint8("image", image)))
        pen, radius = ImageDraw.Draw(picture), max(1.0, min(picture.size) / 100)
        for index, ((x, y), score) in enumerate(zip(self.xy.tolist(), self.scores, strict=True)):
            if score >= threshold:
                dot = (x - radius, y - radius, x + radius, y + radius)
                pen.ellipse(dot, fill=label_colour(index), outline="white")
        return np.asarray(picture)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the keypoints as a list of dicts of plain Python values, for `json.dumps`."""
        rows = zip(self.xy.tolist(), self.scores.tolist(), strict=True)
        found = [{"x": x, "y": y, "score": score} for (x, y), score in rows]
        return [one | {"name": name} for one, name in zip(found, self.names, strict=True)] if self.names else found
