"""Boxes: the answers of YOLOS, OWL-ViT and OWLv2 in pixels of the image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from keras_vit import checks
from keras_vit.tasks.drawing import as_uint8, check_array, check_names, label_colour
from keras_vit.tasks.inputs import Placement, boxes_to_image

_FADED = 0.1  # of the best score: what an example finds with less than this is dropped


def detected_boxes(
    scores: npt.ArrayLike,
    boxes: npt.ArrayLike,
    place: Placement,
    threshold: float = 0.5,
    names: Sequence[str] | None = None,
) -> "Boxes":
    """Return the boxes of one image whose best score is above a threshold.

    The boxes have the order of the rows. Boxes that overlap are not merged, and edges outside the image are not moved
    into it.

    Args:
        scores: (boxes, classes), in [0, 1]: the softmax without the class of no object for YOLOS, the sigmoid of the
            logits of the queries for OWL.
        boxes: (boxes, 4): centre x, centre y, width and height as shares of the input.
        place: where the image is in the input, see `prepare`.
        threshold: number in [0, 1).
        names: names of the classes or queries.

    Raises:
        ValueError: on another shape or range.
    """
    scores = check_array("scores", scores, ("boxes", "classes"))
    boxes = check_array("boxes", boxes, (len(scores), 4))
    names = check_names("names", names, scores.shape[1])
    kept = scores.max(-1) > checks.check_rate("threshold", threshold)
    labels = scores.argmax(-1)[kept]
    found = names and tuple(names[label] for label in labels)
    return Boxes(boxes_to_image(boxes[kept], place), scores.max(-1)[kept], labels, found)


def example_boxes(
    scores: npt.ArrayLike,
    boxes: npt.ArrayLike,
    place: Placement,
    threshold: float = 0.0,
    overlap: float = 0.3,
) -> "Boxes":
    """Return the boxes of one image that queries of example images find.

    The boxes have the order of the rows. A box is dropped if it overlaps with a better box that is kept (non-maximum
    suppression), or if its score is below the threshold. The scores are then stretched so that the best of the image is
    1 and a tenth of it is 0; boxes with 0 are dropped.

    Args:
        scores, boxes, place: as in `detected_boxes`, for OWL.
        threshold: minimum score before the stretch, a number in [0, 1).
        overlap: maximum IoU of two boxes, a number in [0, 1).

    Returns:
        `Boxes`, whose labels are the indices of the queries

    Raises:
        ValueError: on another shape or range.
    """
    every = detected_boxes(scores, boxes, place, 0.0)
    threshold, overlap = checks.check_rate("threshold", threshold), checks.check_rate("overlap", overlap)
    kept = np.zeros(len(every.scores), bool)
    for index in np.argsort(-every.scores, kind="stable"):
        kept[index] = not (_iou(every.boxes[index], every.boxes[kept]) > overlap).any()
    kept &= every.scores >= threshold
    best = every.scores[kept].max(initial=0.0)
    stretched = np.clip((every.scores - _FADED * best) / ((1 - _FADED) * best or 1), 0.0, 1.0)
    kept &= stretched > 0
    return Boxes(every.boxes[kept], stretched[kept], every.labels[kept])


def _iou(edges, others):
    """Return the intersection over union of one box and others: (4,) and (n, 4) -> (n,)."""
    shared = np.clip(np.minimum(edges[2:], others[:, 2:]) - np.maximum(edges[:2], others[:, :2]), 0, None).prod(-1)
    areas = [np.prod(one[..., 2:] - one[..., :2], axis=-1) for one in (edges, others)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes:
    """Hold the objects found in an image.

    Attributes:
        boxes: float32 (n, 4): left, top, right and bottom edge in pixels of the upright image, from its corner.
        scores: float32 (n,), in [0, 1].
        labels: int64 (n,), indices of the classes.
        names: name of the class of each box, or None.

    Raises:
        ValueError: if the lengths differ or a value is out of range.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.scores)
        boxes, scores = np.reshape(self.boxes, (-1, 4)) if not count else self.boxes, self.scores
        object.__setattr__(self, "boxes", check_array("boxes", boxes, (count, 4)).astype("float32"))
        object.__setattr__(self, "scores", check_array("scores", scores, (count,)).astype("float32"))
        object.__setattr__(self, "labels", np.asarray(self.labels, "int64"))
        if self.labels.shape != (count,) or (self.names is not None and len(self.names) != count):
            got = f"labels of shape {self.labels.shape}, names={self.names!r}"
            raise ValueError(f"labels and names must have one value for each of {count} scores; got {got}")

    def __str__(self) -> str:
        names = self.names or self.labels.tolist()
        rows = zip(self.scores.tolist(), names, self.boxes.tolist(), strict=True)
        found = (f"  {score:.4f}  {name}  " + " ".join(f"{edge:.1f}" for edge in box) for score, name, box in rows)
        return "\n".join(found) or "  nothing found"

    def best(self, count: int | None) -> "Boxes":
        """Return the boxes with the highest scores, best first.

        Args:
            count: number of boxes; None returns all in their order.

        Raises:
            ValueError: if the count is not a positive integer.
        """
        if count is None:
            return self
        kept = np.argsort(-self.scores, kind="stable")[: checks.check_integer("top", count)]
        names = self.names and tuple(self.names[index] for index in kept)
        return Boxes(self.boxes[kept], self.scores[kept], self.labels[kept], names)

    def draw(self, image: npt.ArrayLike) -> np.ndarray:
        """Draw the boxes with their classes and scores over an image.

        Args:
            image: (height, width, 1 or 3) or (height, width), upright: uint8, or floats in [0, 1].

        Returns:
            uint8 array (height, width, 3).

        Raises:
            ValueError: on another shape or range.
        """
        picture = Image.fromarray(np.array(as_uint8("image", image)))
        pen, line = ImageDraw.Draw(picture), max(1, round(min(picture.size) / 200))
        for number in np.argsort(self.scores, kind="stable"):  # the best box last
            colour, label = label_colour(int(self.labels[number])), int(self.labels[number])
            edges = [float(edge) for edge in self.boxes[number]]
            x0, x1 = sorted(edges[::2])
            y0, y1 = sorted(edges[1::2])
            pen.rectangle((x0, y0, max(x1 - 1, x0), max(y1 - 1, y0)), outline=colour, width=line)
            text = f"{self.names[number] if self.names else label} {self.scores[number]:.2f}"
            place = (max(x0, 0) + line + 1, max(y0, 0) + line)
            pen.rectangle(pen.textbbox(place, text), fill=colour)
            pen.text(place, text, fill="black")
        return np.asarray(picture)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the boxes as a list of dicts of plain Python values, for `json.dumps`."""
        rows = zip(self.boxes.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        found = [{"box": box, "score": score, "label": label} for box, score, label in rows]
        return [one | {"name": name} for one, name in zip(found, self.names, strict=True)] if self.names else found
