"""Segments: the answer of EoMT as a map of classes, or of instances, in pixels of the image."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.tasks.drawing import check_array, check_names, draw_labels, resize_map, run_lengths, sigmoid, softmax
from keras_vit.typing import Size

_DIGITS = 6  # of the scores of panoptic segments
_TINY = 1e-6  # added to an area, as in transformers


def windows(size: Size, side: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Return the size of an image whose shorter side is `side`, and square windows spread along its longer side.

    Args:
        size: (height, width) of the image, or one integer for both.
        side: side of the windows.

    Returns:
        Tuple of (height, width); and (start, stop) of each window along the longer side, the height if both are equal.

    Raises:
        ValueError: if a value is out of range.
    """
    size, side = checks.check_pair("size", size), checks.check_integer("side", side)
    short, long = sorted(size)
    height, width = (each * side // short for each in size)
    count = -(-max(height, width) // side)
    step = side - (count * side - max(height, width)) / max(count - 1, 1)
    starts = [int(index * step) for index in range(count)]
    return (height, width), [(start, start + side) for start in starts]


def semantic_scores(mask_logits: npt.ArrayLike, class_logits: npt.ArrayLike, size: Size, side: int) -> np.ndarray:
    """Return the score of each class at each pixel of an image, from its windows.

    Args:
        mask_logits: (windows, rows, columns, queries), for the windows of `windows`.
        class_logits: (windows, queries, classes + 1); the last class is that of no object.
        size: (height, width) of the upright image.
        side: side of the windows, the input size of the model.

    Returns:
        float array (height, width, classes): the sum over the queries of the probability of the class times that of
        the mask, averaged where windows overlap.

    Raises:
        ValueError: on another shape, or if there is not one input for each window.
    """
    resized, places = windows(size, side)
    mask_logits = check_array("mask_logits", mask_logits, (len(places), "rows", "columns", "queries"))
    shape = (len(places), mask_logits.shape[-1], "classes + 1")
    class_logits = check_array("class_logits", class_logits, shape)
    classes = softmax(class_logits)[..., :-1]
    total, seen = np.zeros((*resized, classes.shape[-1])), np.zeros((*resized, 1))
    for (start, stop), masks, shares in zip(places, mask_logits, classes, strict=True):
        across = resized[1] > resized[0]
        at = (slice(None), slice(start, stop)) if across else (slice(start, stop), slice(None))
        total[at] += sigmoid(resize_map(masks, (side, side))) @ shares
        seen[at] += 1
    return resize_map(total / seen, checks.check_pair("size", size))


def semantic(
    mask_logits: npt.ArrayLike,
    class_logits: npt.ArrayLike,
    size: Size,
    side: int,
    names: Sequence[str] | None = None,
) -> "LabelMap":
    """Return the class of each pixel of an image, that with the highest of `semantic_scores`.

    Args:
        mask_logits, class_logits, size, side: as in `semantic_scores`.
        names: names of the classes.

    Raises:
        ValueError: on another shape, or if there is not one input for each window.
    """
    scores = semantic_scores(mask_logits, class_logits, size, side)
    return LabelMap(scores.argmax(-1), check_names("names", names, scores.shape[-1]))


def instances(
    mask_logits: npt.ArrayLike,
    class_logits: npt.ArrayLike,
    size: Size,
    side: int,
    threshold: float = 0.8,
    names: Sequence[str] | None = None,
) -> "Segments":
    """Return the instances of an image whose score is at least a threshold; later queries are on top.

    Args:
        mask_logits: (rows, columns, queries), for an image whose longer side was resized to `side` and that was padded
            at the bottom or right to a square.
        class_logits: (queries, classes + 1); the last class is that of no object.
        size: (height, width) of the upright image.
        side: side of the square, the input size of the model.
        threshold: number in [0, 1); the score is the largest probability of an object times the mean of the mask.
        names: names of the classes.

    Raises:
        ValueError: on another shape or range.
    """
    logits, classes = _in_image(mask_logits, class_logits, size, side)
    threshold = checks.check_rate("threshold", threshold)
    masks, objects = logits > 0, classes[:, :-1]
    areas = masks.sum((0, 1))
    scores = objects.max(-1) * (sigmoid(logits) * masks).sum((0, 1)) / (areas + _TINY)
    kept = np.flatnonzero((areas > 0) & (scores >= threshold))
    ids = np.full(logits.shape[:2], -1)
    for number, query in enumerate(kept):
        ids[masks[..., query]] = number
    return _segments(ids, objects.argmax(-1)[kept], scores[kept], names, objects.shape[1])


def panoptic(
    mask_logits: npt.ArrayLike,
    class_logits: npt.ArrayLike,
    size: Size,
    side: int,
    stuff: Collection[int] = (),
    threshold: float = 0.8,
    overlap: float = 0.8,
    names: Sequence[str] | None = None,
) -> "Segments":
    """Return the segments of an image, of which no two overlap.

    A pixel belongs to the query with the largest product of score and mask. A segment is kept if the pixels that it
    owns are more than a share of its mask.

    Args:
        mask_logits, class_logits, size, side: as in `instances`.
        stuff: indices of the classes whose segments become one, such as sky.
        threshold: number in [0, 1); the largest probability must be that of an object, and above it.
        overlap: number in [0, 1), the share.
        names: names of the classes.

    Raises:
        ValueError: on another shape or range.
    """
    logits, classes = _in_image(mask_logits, class_logits, size, side)
    threshold, overlap = checks.check_rate("threshold", threshold), checks.check_rate("overlap", overlap)
    every, scores = classes.argmax(-1), classes.max(-1)
    kept = np.flatnonzero((every < classes.shape[1] - 1) & (scores > threshold))
    ids = np.full(logits.shape[:2], -1)
    number_of: dict[int, int] = {}  # label -> its last segment
    labels: list[int] = []
    kept_scores: list[float] = []
    masks = sigmoid(logits[..., kept])
    owner = (scores[kept] * masks).argmax(-1) if len(kept) else ids
    for index, query in enumerate(kept):
        mask, label = masks[..., index] >= 0.5, int(every[query])
        owned = mask & (owner == index)
        if not owned.any() or owned.sum() / mask.sum() <= overlap:
            continue
        if label not in number_of or label not in stuff:
            number_of[label] = len(labels)
            labels.append(label)
            kept_scores.append(round(float(scores[query]), _DIGITS))
        ids[owned] = number_of[label]
    return _segments(ids, labels, kept_scores, names, classes.shape[1] - 1)


def unpadded_size(size: Size, side: int) -> tuple[int, int]:
    """Return the (height, width) of an image whose longer side is resized to `side`; the rest of the square is padding.

    Args:
        size: (height, width) of the image, or one integer for both.
        side: side of the square.

    Raises:
        ValueError: if a value is out of range.
    """
    size, side = checks.check_pair("size", size), checks.check_integer("side", side)
    height, width = (max(round(each * side / max(size)), 1) for each in size)
    return height, width


def _in_image(mask_logits, class_logits, size, side):
    """Return mask logits (height, width, queries) in pixels of the image, and probabilities (queries, classes + 1)."""
    mask_logits = check_array("mask_logits", mask_logits, ("rows", "columns", "queries"))
    class_logits = check_array("class_logits", class_logits, (mask_logits.shape[-1], "classes + 1"))
    rows, columns = unpadded_size(size, side)
    logits = resize_map(mask_logits, (side, side))[:rows, :columns]
    return resize_map(logits, checks.check_pair("size", size)), softmax(class_logits)


def _segments(ids, labels, scores, names, classes):
    names = check_names("names", names, classes)
    return Segments(ids, labels, scores, names and tuple(names[label] for label in labels))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelMap:
    """Hold the class of each pixel of an image.

    Attributes:
        labels: int32 (height, width), for the pixels of the upright image; -1 is no class.
        names: names of the classes, or None.

    Raises:
        ValueError: if the labels are no map of integers.
    """

    labels: np.ndarray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _integer_map("labels", self.labels))

    def draw(self, image: npt.ArrayLike | None = None) -> np.ndarray:
        """Draw each class in a colour.

        Args:
            image: (height, width, 1 or 3) or (height, width), to draw over: uint8, or floats in [0, 1].

        Returns:
            uint8 array (height, width, 3).

        Raises:
            ValueError: if the image has another size than the map.
        """
        return draw_labels(self.labels, image)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain Python values, for `json.dumps`: `runs` are [label, length] in row-major order."""
        height, width = self.labels.shape
        about = {"height": height, "width": width, "runs": run_lengths(self.labels)}
        return about | ({"names": list(self.names)} if self.names else {})


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """Hold the segments of an image.

    Attributes:
        ids: int32 (height, width), the segment of each pixel of the upright image, an index of the other attributes;
            -1 is no segment.
        labels: int64 (segments,), indices of the classes.
        scores: float32 (segments,), in [0, 1].
        names: name of the class of each segment, or None.

    Raises:
        ValueError: if the lengths differ or an id has no segment.
    """

    ids: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("ids", _integer_map("ids", self.ids)),
            ("labels", np.asarray(self.labels, "int64")),
            ("scores", np.asarray(self.scores, "float32")),
        ):
            object.__setattr__(self, name, value)
        count = len(self.labels)
        if self.scores.shape != (count,) or len(self.names or self.labels) != count or self.ids.max() >= count:
            got = f"{len(self.scores)} scores, names={self.names!r} and ids up to {self.ids.max()}"
            raise ValueError(f"scores, names and ids must belong to {count} labels; got {got}")

    def draw(self, image: npt.ArrayLike | None = None) -> np.ndarray:
        """Draw each segment in a colour.

        Args:
            image: (height, width, 1 or 3) or (height, width), to draw over: uint8, or floats in [0, 1].

        Returns:
            uint8 array (height, width, 3).

        Raises:
            ValueError: if the image has another size than the map.
        """
        return draw_labels(self.ids, image)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain Python values, for `json.dumps`: `runs` are [id, length] in row-major order."""
        height, width = self.ids.shape
        areas = np.bincount(self.ids[self.ids >= 0], minlength=len(self.labels)).tolist()
        rows = zip(areas, self.labels.tolist(), self.scores.tolist(), strict=True)
        found = [
            {"id": number, "label": label, "score": score, "area": area}
            for number, (area, label, score) in enumerate(rows)
        ]
        for one, name in zip(found, self.names or (), strict=False):
            one["name"] = name
        return {"height": height, "width": width, "segments": found, "runs": run_lengths(self.ids)}


def _integer_map(name, values):
    values = np.asarray(values)
    if values.ndim != 2 or not values.size or values.dtype.kind not in "iu" or values.min() < -1:
        raise ValueError(f"{name} must be integers (height, width) from -1; got {values.dtype} of shape {values.shape}")
    return values.astype("int32")
