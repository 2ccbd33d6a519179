"""Boxes: the size of the input of YOLOS, and its answer as boxes in pixels of the image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from keras_vit import checks
from keras_vit.analysis.overlay import as_uint8
from keras_vit.tasks.drawing import check_array, check_names, label_colour, softmax
from keras_vit.typing import Size


def detection_input_size(size: Size, shortest: int = 800, longest: int = 1333, multiple: int = 16) -> tuple[int, int]:
    """Return the size to which an image is resized for YOLOS.

    Args:
        size: (height, width) of the image, or one integer for both.
        shortest: length of the shorter side.
        longest: maximum length of the longer side; the shorter side then follows from it.
        multiple: both sides are cut down to a multiple of it, such as the patch size; 1 for DETR.

    Returns:
        (height, width), at least one multiple each.

    Raises:
        ValueError: if a value is out of range.
    """
    size = checks.check_pair("size", size)
    for name, value in (("shortest", shortest), ("longest", longest), ("multiple", multiple)):
        checks.check_integer(name, value)
    short, long = sorted(size)
    wanted, side = (shortest, short) if shortest * long <= longest * short else (longest, long)
    height, width = (max(wanted * each // side // multiple, 1) * multiple for each in size)
    return height, width


def detected_boxes(
    logits: npt.ArrayLike,
    boxes: npt.ArrayLike,
    size: Size,
    threshold: float = 0.5,
    names: Sequence[str] | None = None,
) -> "Boxes":
    """Return the boxes of one image whose score is above a threshold, in the order of the queries.

    Boxes that overlap are not merged, and edges outside the image are not moved into it.

    Args:
        logits: (queries, classes + 1); the last class is that of no object.
        boxes: (queries, 4): centre x, centre y, width and height as shares of the image.
        size: (height, width) of the upright image.
        threshold: number in [0, 1); the score is the largest softmax probability of an object.
        names: names of the classes.

    Raises:
        ValueError: on another shape or range.
    """
    logits = check_array("logits", logits, ("queries", "classes + 1"))
    boxes = check_array("boxes", boxes, (len(logits), 4))
    (height, width), threshold = checks.check_pair("size", size), checks.check_rate("threshold", threshold)
    if logits.shape[1] < 2:
        raise ValueError(f"logits must have at least two columns, the last for no object; got shape {logits.shape}")
    objects = softmax(logits)[:, :-1]
    names = check_names("names", names, objects.shape[1])
    labels, scores = objects.argmax(-1), objects.max(-1)
    kept = scores > threshold
    middle, half = boxes[kept, :2], boxes[kept, 2:] / 2
    edges = np.concatenate([middle - half, middle + half], -1) * (width, height, width, height)
    labels = labels[kept]
    return Boxes(edges, scores[kept], labels, names and tuple(names[label] for label in labels))


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
