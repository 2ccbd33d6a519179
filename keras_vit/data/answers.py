"""Answer: what is known about an image (classes of pixels, depth, objects), and the targets that follow from it."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit import checks
from keras_vit.losses import VOID

NAMES = ("label_map", "depth", "keypoints", "boxes", "masks")  # of targets
# kind of a source -> the targets that its answers have
TARGETS = {
    "semantic": ("label_map", "masks"),
    "panoptic": ("masks", "label_map", "boxes"),
    "instances": ("masks", "label_map", "boxes"),
    "boxes": ("boxes",),
    "keypoints": ("keypoints",),
    "depth": ("depth",),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """Hold what is known about an image; what is not known is None.

    All coordinates are in pixels of the upright image.

    Attributes:
        label_map: int32 (height, width), the class of each pixel from 0; 255 (`VOID`) has no class.
        depth: float32 (height, width), metres or disparity; 0 is unknown.
        labels: int32 (objects,), the class of each object from 0.
        masks: bool (objects, height, width).
        boxes: float32 (objects, 4), left, top, right and bottom edges.
        keypoints: float32 (objects, keypoints, 3): x and y from the centre of the first pixel, and the visibility: 0 is
            not labelled, 1 hidden, 2 visible.
        crowd: bool (objects,), whether it is a region of many objects. Targets have none of them.
        areas: float64 (objects,), the areas in pixels that COCO's metrics use.
    """

    label_map: np.ndarray | None = None
    depth: np.ndarray | None = None
    labels: np.ndarray | None = None
    masks: np.ndarray | None = None
    boxes: np.ndarray | None = None
    keypoints: np.ndarray | None = None
    crowd: np.ndarray | None = None
    areas: np.ndarray | None = None

    def as_targets(self, targets: str, person: int | None = None) -> "Answer":
        """Return an answer that has only what a model is trained with, without crowds.

        Args:
            targets: `label_map`: objects become a map, smaller ones on top, with `VOID` elsewhere. `masks`: objects, or
                one mask for each class of the label map. `boxes`. `keypoints`: with the boxes. `depth`.
            person: number of the only object that is returned, a crowd or not; None: all.

        Raises:
            ValueError: if the targets do not follow from this answer.
        """
        checks.check_choice("targets", targets, NAMES)
        if targets == "masks" and self.masks is None and self.label_map is not None:
            classes = np.setdiff1d(self.label_map, [VOID]).astype("int32")
            return Answer(labels=classes, masks=self.label_map == classes[:, None, None])
        known = getattr(self, targets)
        if targets in ("label_map", "depth") and known is not None:
            return Answer(**{targets: known})
        shapes = self.masks if targets == "label_map" else known
        if shapes is None or self.labels is None:
            raise ValueError(f"targets must follow from what this answer has; got targets={targets!r}")
        chosen: Any = [person] if person is not None else slice(None) if self.crowd is None else ~self.crowd
        if targets == "label_map":
            return Answer(label_map=_painted(self.labels[chosen], shapes[chosen]))
        boxes = {"boxes": self.boxes[chosen]} if targets == "keypoints" and self.boxes is not None else {}
        return Answer(labels=self.labels[chosen], **{targets: shapes[chosen]}, **boxes)


def boxes_of(masks: np.ndarray) -> np.ndarray:
    """Return the edges of the smallest boxes around masks; those of an empty mask are 0.

    Args:
        masks: bool (objects, height, width).

    Returns:
        float32 (objects, 4): left, top, right, bottom.
    """
    edges = np.zeros((len(masks), 4), "float32")
    for first, axis in ((0, 1), (1, 2)):
        is_used = np.any(masks, axis=axis)
        edges[:, first] = is_used.argmax(1)
        edges[:, first + 2] = (is_used.shape[1] - is_used[:, ::-1].argmax(1)) * is_used.any(1)
    return edges


def areas_of(masks: np.ndarray) -> np.ndarray:
    """Return the numbers of pixels of masks, float64 (objects,).

    Args:
        masks: bool (objects, height, width).
    """
    return np.array([np.count_nonzero(mask) for mask in masks], "float64")


def _painted(labels, masks):
    """Return the label map of objects, smaller ones on top."""
    label_map = np.full(masks.shape[1:], VOID, "int32")
    for place in np.argsort(-areas_of(masks), kind="stable"):
        label_map[masks[place]] = labels[place]
    return label_map
