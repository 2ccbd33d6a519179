"""Segments: the answers of EoMT and DPT as a map of classes, or of instances, in pixels of the image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.layers.position_grid import resize_matrix
from keras_vit.tasks.drawing import check_array, check_names, draw_labels, resize_map, run_lengths, sigmoid, softmax
from keras_vit.tasks.inputs import Placement, map_to_image
from keras_vit.typing import Size

_DIGITS = 6  # of the scores of panoptic segments
_STRIP = 64  # rows of the image
_TINY = 1e-6  # added to an area, as in transformers


def semantic_scores(mask_logits: npt.ArrayLike, class_logits: npt.ArrayLike, places: Sequence[Placement]) -> np.ndarray:
    """Return the score of each class at each pixel of a resized image.

    Args:
        mask_logits: (windows, rows, columns, queries).
        class_logits: (windows, queries, classes + 1); the last class is that of no object.
        places: where the image is in each window, see `prepare`.

    Returns:
        float array (height, width, classes): the sum over the queries of the probability of the class times that of
        the mask, averaged where windows overlap.

    Raises:
        ValueError: on another shape.
    """
    mask_logits = check_array("mask_logits", mask_logits, (len(places), "rows", "columns", "queries"))
    class_logits = check_array("class_logits", class_logits, (len(places), mask_logits.shape[-1], "classes + 1"))
    classes = softmax(class_logits)[..., :-1]
    total, seen = np.zeros((*places[0].resized, classes.shape[-1]), "float32"), np.zeros((*places[0].resized, 1))
    for place, masks, shares in zip(places, mask_logits, classes, strict=True):
        left, top = (-int(offset) for offset in place.offset)
        part = total[top : top + place.size[0], left : left + place.size[1]]
        rows, columns = part.shape[:2]  # without padding
        part += (sigmoid(resize_map(masks, place.size)) @ shares)[:rows, :columns]
        seen[top : top + rows, left : left + columns] += 1
    return total / seen


def label_map(scores: npt.ArrayLike, size: Size, names: Sequence[str] | None = None) -> "LabelMap":
    """Return the class with the highest score for each pixel of an image.

    Args:
        scores: (rows, columns, classes), such as `semantic_scores`; resized to the image bilinearly (half-pixel
            centres, without antialiasing).
        size: (height, width) of the upright image.
        names: names of the classes.

    Raises:
        ValueError: on another shape.
    """
    scores, size = check_array("scores", scores, ("rows", "columns", "classes")), checks.check_pair("size", size)
    names = check_names("names", names, scores.shape[-1])
    vertical, horizontal = (resize_matrix("bilinear", *sides) for sides in zip(scores.shape[:2], size, strict=True))
    across = np.einsum("xc,rck->rxk", horizontal, scores)
    # the scores of all pixels would need much memory
    strips = (vertical[start : start + _STRIP] for start in range(0, size[0], _STRIP))
    return LabelMap(np.concatenate([np.einsum("yr,rxk->yxk", strip, across).argmax(-1) for strip in strips]), names)


def instances(
    mask_logits: npt.ArrayLike,
    class_logits: npt.ArrayLike,
    place: Placement,
    size: Size,
    threshold: float = 0.8,
    names: Sequence[str] | None = None,
) -> "Segments":
    """Return the instances of an image whose score is at least a threshold.

    Where instances overlap, the later query is on top.

    Args:
        mask_logits: (rows, columns, queries).
        class_logits: (queries, classes + 1); the last class is that of no object.
        place: where the image is in the input, see `prepare`.
        size: (height, width) of the upright image.
        threshold: number in [0, 1); the score is the largest probability of an object times the mean of the mask.
        names: names of the classes.

    Raises:
        ValueError: on another shape or range.
    """
    masks, classes, sides = _checked(mask_logits, class_logits, size)
    objects, threshold = classes[:, :-1], checks.check_rate("threshold", threshold)
    ids = np.full(sides, -1)
    labels: list[int] = []
    scores: list[float] = []
    for query in np.flatnonzero(objects.max(-1) >= threshold):  # the mean of a mask is at most 1
        mask, mean = _mask_in_image(masks[..., query], place, sides)
        score = objects[query].max() * mean
        if mask.any() and score >= threshold:
            ids[mask] = len(labels)
            labels.append(int(objects[query].argmax()))
            scores.append(score)
    return _segments(ids, labels, scores, names, objects.shape[1])


def ranked_instances(mask_logits, class_logits, place, size, top):
    """Return the best pairs of a query and a class of an image, which average precision needs.

    The score of a pair is the probability of the class times the mean of the mask, as in the code of EoMT.

    Args:
        mask_logits, class_logits, place, size: as in `instances`.
        top: number of pairs, chosen by the probability of the class.

    Returns:
        Tuple of classes, int64 (pairs,); scores, float32 (pairs,); and masks, bool (pairs, height, width).
    """
    masks, classes, sides = _checked(mask_logits, class_logits, size)
    objects = classes[:, :-1]
    best = np.argsort(-objects, axis=None, kind="stable")[:top]
    queries, labels = np.divmod(best, objects.shape[1])
    different, places = np.unique(queries, return_inverse=True)
    found, means = zip(*(_mask_in_image(masks[..., query], place, sides) for query in different), strict=True)
    return labels, objects.ravel()[best] * np.array(means, "float32")[places], np.array(found)[places]


def panoptic(
    mask_logits: npt.ArrayLike,
    class_logits: npt.ArrayLike,
    place: Placement,
    size: Size,
    stuff: Sequence[int] = (),
    threshold: float = 0.8,
    overlap: float = 0.8,
    names: Sequence[str] | None = None,
) -> "Segments":
    """Return the segments of an image, of which no two overlap.

    A pixel belongs to the query with the largest product of score and mask. A segment is kept if the pixels that its
    query owns are more than a share of the area of its mask.

    Args:
        mask_logits, class_logits, place, size: as in `instances`.
        stuff: indices of the classes whose segments become one, such as sky.
        threshold: number in [0, 1); the largest probability must be that of an object, and above it.
        overlap: number in [0, 1), the share.
        names: names of the classes.

    Raises:
        ValueError: on another shape or range.
    """
    masks, classes, sides = _checked(mask_logits, class_logits, size)
    threshold, overlap = checks.check_rate("threshold", threshold), checks.check_rate("overlap", overlap)
    stuff = checks.check_indices("stuff", stuff)
    if stuff and max(stuff) >= classes.shape[1] - 1:
        raise ValueError(f"stuff must be indices of {classes.shape[1] - 1} classes; got {stuff}")
    every, scores = classes.argmax(-1), classes.max(-1)
    kept = np.flatnonzero((every < classes.shape[1] - 1) & (scores > threshold))
    best, owner = np.zeros(sides), np.full(sides, -1)
    for query in kept:
        score = scores[query] * sigmoid(map_to_image(masks[..., query], place, sides))
        owner[score > best] = query
        best = np.maximum(best, score)
    ids, number_of = np.full(sides, -1), dict[int, int]()  # label -> its last segment
    labels: list[int] = []
    kept_scores: list[float] = []
    for query in kept:
        mask, label = map_to_image(masks[..., query], place, sides) >= 0, int(every[query])
        owned = owner == query
        if not (owned & mask).any() or owned.sum() / mask.sum() <= overlap:
            continue
        if label not in number_of or label not in stuff:
            number_of[label] = len(labels)
            labels.append(label)
            kept_scores.append(round(float(scores[query]), _DIGITS))
        ids[owned & mask] = number_of[label]
    return _segments(ids, labels, kept_scores, names, classes.shape[1] - 1)


def _checked(mask_logits, class_logits, size):
    """Return the mask logits, the probabilities of the classes (queries, classes + 1), and the size, all checked."""
    masks = check_array("mask_logits", mask_logits, ("rows", "columns", "queries"))
    class_logits = check_array("class_logits", class_logits, (masks.shape[-1], "classes + 1"))
    return masks, softmax(class_logits), checks.check_pair("size", size)


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

    def __str__(self) -> str:
        values, counts = np.unique(self.labels, return_counts=True)
        rows = sorted(zip(counts / self.labels.size, values.tolist(), strict=True), reverse=True)
        return "\n".join(
            f"  {share:.1%}  {self.names[label] if self.names and label >= 0 else label}" for share, label in rows
        )

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
        """Return a dict of plain Python values, for `json.dumps`.

        Its `runs` are [label, length] in row-major order.
        """
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

    def __str__(self) -> str:
        shares = (np.mean(self.ids == number) for number in range(len(self.labels)))
        rows = zip(self.scores.tolist(), self.names or self.labels.tolist(), shares, strict=True)
        return "\n".join(f"  {score:.4f}  {name}  {share:.1%}" for score, name, share in rows) or "  nothing found"

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
        """Return a dict of plain Python values, for `json.dumps`.

        Its `runs` are [id, length] in row-major order.
        """
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


def _mask_in_image(logits, place, size):
    """Return the mask of a query, bool (height, width), and the mean of its probabilities."""
    logits = map_to_image(logits, place, size)
    mask = logits > 0
    return mask, sigmoid(logits[mask]).sum() / (mask.sum() + _TINY)


def _integer_map(name, values):
    values = np.asarray(values)
    if values.ndim != 2 or not values.size or values.dtype.kind not in "iu" or values.min() < -1:
        raise ValueError(f"{name} must be integers (height, width) from -1; got {values.dtype} of shape {values.shape}")
    return values.astype("int32")
