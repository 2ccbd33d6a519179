"""Keypoints: the heatmaps of ViTPose as keypoints in pixels of the image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from keras_vit import checks
from keras_vit.tasks.drawing import as_uint8, check_array, check_names, label_colour
from keras_vit.tasks.inputs import Placement

# program -> standard deviation of its blur of the heatmaps, in their pixels, and the mode of `np.pad` for its border
BLURS = {"authors": (2.0, "reflect"), "transformers": (0.8, "symmetric")}
_RADIUS = 5  # taps of the blur on each side
_RANGE = (1e-3, 50.0)  # of a heatmap before its logarithm
_TINY = float(np.finfo("float32").eps)  # added to the diagonal of the Hessian


def flip_average(heatmaps: npt.ArrayLike, flipped: npt.ArrayLike, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Average heatmaps with those of the mirrored image (the flip test).

    Args:
        heatmaps: (..., rows, columns, keypoints).
        flipped: the same for the mirrored image.
        pairs: indices of the left and right keypoints that change places.

    Returns:
        The mean, in the shape of the heatmaps

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
    """Return the peak of each heatmap, refined below a pixel.

    A Newton step from the largest pixel, on the logarithm of the blurred heatmap, gives the peak (DARK, arXiv
    1910.06278).

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
    places: Sequence[Placement],
    blur: str = "authors",
    names: Sequence[str] | None = None,
) -> "Keypoints":
    """Return the keypoints of the persons in an image.

    Args:
        heatmaps: (persons, rows, columns, keypoints), the output of the model, or the result of `flip_average`.
        places: where the image is in the input for each person, see `prepare`.
        blur: as in `heatmap_peaks`.
        names: names of the keypoints.

    Raises:
        ValueError: on another shape, or if the blur is unknown.
    """
    heatmaps = check_array("heatmaps", heatmaps, (len(places), "rows", "columns", "keypoints"))
    last = np.maximum(np.array(heatmaps.shape[2:0:-1]) - 1, 1)
    scores = np.zeros((len(heatmaps), heatmaps.shape[-1]))
    xy = np.zeros((*scores.shape, 2))
    for n, (place, one) in enumerate(zip(places, heatmaps, strict=True)):
        peaks, scores[n] = heatmap_peaks(one, blur)
        # the first and last pixels of heatmap and input are at the same places
        xy[n] = place.to_image(peaks * ((np.array(place.size[::-1]) - 1) / last))
    return Keypoints(xy, scores, check_names("names", names, scores.shape[1]))


@dataclasses.dataclass(frozen=True, eq=False)
class Keypoints:
    """Hold the keypoints of the persons in an image.

    Attributes:
        xy: float32 (persons, keypoints, 2), in pixels of the upright image, from the centre of its first pixel.
        scores: float32 (persons, keypoints), the largest values of the heatmaps.
        names: names of the keypoints, or None.

    Raises:
        ValueError: if the lengths differ.
    """

    xy: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        persons = len(self.scores)  # there may be none
        scores = check_array("scores", self.scores, (persons, "keypoints")).astype("float32")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "xy", check_array("xy", self.xy, (*scores.shape, 2)).astype("float32"))
        object.__setattr__(self, "names", check_names("names", self.names, scores.shape[1]))

    def __str__(self) -> str:
        names = self.names or [*range(self.scores.shape[1])]
        found = [
            f"  {score:.4f}  {name}  {x:.1f} {y:.1f}"
            for person, scores in zip(self.xy.tolist(), self.scores.tolist(), strict=True)
            for (x, y), score, name in zip(person, scores, names, strict=True)
        ]
        return "\n".join(found) or "  no person"

    def draw(self, image: npt.ArrayLike, threshold: float = 0.3) -> np.ndarray:
        """Draw a dot for each keypoint of each person over an image.

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
        for person, scores in zip(self.xy.tolist(), self.scores, strict=True):
            for index, ((x, y), score) in enumerate(zip(person, scores, strict=True)):
                if score >= threshold:
                    dot = (x - radius, y - radius, x + radius, y + radius)
                    pen.ellipse(dot, fill=label_colour(index), outline="white")
        return np.asarray(picture)

    def to_json(self) -> list[list[dict[str, Any]]]:
        """Return a list of dicts of plain Python values per person, for `json.dumps`."""
        names: Sequence[str | None] = self.names or [None] * self.scores.shape[1]
        return [
            [
                {"x": x, "y": y, "score": score} | ({"name": name} if name else {})
                for (x, y), score, name in zip(person, scores, names, strict=True)
            ]
            for person, scores in zip(self.xy.tolist(), self.scores.tolist(), strict=True)
        ]
