"""Masks: the answers of SAM and CLIPSeg in pixels of the image."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.tasks.drawing import check_array, check_names, draw_labels, run_lengths
from keras_vit.tasks.inputs import Placement, map_to_image


def masks_in_image(
    logits: npt.ArrayLike,
    scores: npt.ArrayLike,
    place: Placement,
    size: tuple[int, int],
    threshold: float = 0.0,
    names: Any = None,
) -> "Masks":
    """Return masks in pixels of their image.

    The logits are resized bilinearly (half-pixel centres, without antialiasing) to the input, cut to the image without
    padding, and resized bilinearly to the image.

    Args:
        logits: (masks, rows, columns), outputs of the model for one image.
        scores: (masks,), in [0, 1].
        place: where the image is in the input, see `prepare`.
        size: (height, width) of the upright image.
        threshold: a pixel belongs to a mask if its logit is above it.
        names: names of the masks.

    Raises:
        ValueError: on another shape or range.
    """
    logits = check_array("logits", logits, ("masks", "rows", "columns"))
    threshold = checks.check_number("threshold", threshold, "finite number", lambda number: True)
    masks = np.stack([map_to_image(one, place, checks.check_pair("size", size)) > threshold for one in logits])
    return Masks(masks, np.asarray(scores), names)


def mask_stability(logits: npt.ArrayLike, offset: float = 1.0, threshold: float = 0.0) -> np.ndarray:
    """Return how little masks depend on their threshold.

    Args:
        logits: (masks, rows, columns).
        offset: distance of the two thresholds from `threshold`.
        threshold: logits above it belong to the mask.

    Returns:
        (masks,): area above `threshold + offset` as a share of that above `threshold - offset`; 0 for an empty mask.

    Raises:
        ValueError: on another shape, or if a value is out of range.
    """
    logits, offset = (
        check_array("logits", logits, ("masks", "rows", "columns")),
        checks.check_positive("offset", offset),
    )
    threshold = checks.check_number("threshold", threshold, "finite number", lambda number: True)
    inner, outer = ((logits > threshold + sign * offset).sum((-2, -1), dtype="int64") for sign in (1, -1))
    return (inner / np.maximum(outer, 1)).astype("float32")


@dataclasses.dataclass(frozen=True, eq=False)
class Masks:
    """Hold the masks of the prompts for an image; they may overlap.

    Attributes:
        masks: bool (masks, height, width), for the pixels of the upright image.
        scores: float32 (masks,): the predicted IoU (SAM) or the largest probability of a pixel (CLIPSeg).
        names: names of the masks, or None.

    Raises:
        ValueError: if the lengths differ or the masks are not bool.
    """

    masks: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        masks = np.asarray(self.masks)
        if masks.ndim != 3 or 0 in masks.shape[1:] or masks.dtype != bool:
            raise ValueError(f"masks must be bool (masks, height, width); got {masks.dtype} of shape {masks.shape}")
        scores = check_array("scores", self.scores, (len(masks),)) if len(masks) else np.zeros(0)
        object.__setattr__(self, "masks", masks)
        object.__setattr__(self, "scores", scores.astype("float32"))
        object.__setattr__(self, "names", check_names("names", self.names, len(masks)))

    @property
    def boxes(self) -> np.ndarray:
        """Return the extreme pixels of each mask, inclusive.

        Returns:
            (masks, 4), integers x0, y0, x1, y1; zeros if a mask is empty
        """
        (y0, y1), (x0, x1) = (_ends(self.masks.any(axis)) for axis in (-1, -2))
        return np.where(np.asarray(self.masks.any((-2, -1)))[:, None], np.stack([x0, y0, x1, y1], axis=-1), 0)

    def __str__(self) -> str:
        names = self.names or [*range(len(self.masks))]
        rows = zip(self.scores.tolist(), names, self.masks.mean((-2, -1)), strict=True)
        return "\n".join(f"  {score:.4f}  {name}  {share:.1%}" for score, name, share in rows) or "  no mask"

    def draw(self, image: npt.ArrayLike | None = None) -> np.ndarray:
        """Draw each mask in a colour; where masks overlap, the smaller one is on top.

        Args:
            image: (height, width, 1 or 3) or (height, width), to draw over: uint8, or floats in [0, 1].

        Returns:
            uint8 array (height, width, 3).

        Raises:
            ValueError: if the image has another size than the masks.
        """
        labels = np.full(self.masks.shape[1:], -1)
        for index in np.argsort(-self.masks.sum((-2, -1)), kind="stable"):
            labels[self.masks[index]] = index
        return draw_labels(labels, image)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain Python values, for `json.dumps`.

        Its `runs` are [0 or 1, length] in row-major order.
        """
        _, height, width = self.masks.shape
        found = [
            {"score": score, "box": box, "runs": run_lengths(mask.astype("int8"))}
            for score, box, mask in zip(self.scores.tolist(), self.boxes.tolist(), self.masks, strict=True)
        ]
        named = [one | {"name": name} for one, name in zip(found, self.names, strict=True)] if self.names else found
        return {"height": height, "width": width, "masks": named}


def _ends(taken):
    """Return the first and the last true index along the last axis."""
    return taken.argmax(-1), taken.shape[-1] - 1 - taken[..., ::-1].argmax(-1)
