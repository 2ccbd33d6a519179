"""Average precision of boxes, masks and keypoints as COCO defines it, by pycocotools (extra `coco`)."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit import checks
from keras_vit.versions import import_optional, install_command

_TYPES = {"boxes": "bbox", "instances": "segm", "keypoints": "keypoints"}  # iouType of COCOeval
_STATS = tuple("AP AP50 AP75 AP_small AP_medium AP_large AR1 AR10 AR100 AR_small AR_medium AR_large".split())
_KEYPOINT_STATS = tuple("AP AP50 AP75 AP_medium AP_large AR AR50 AR75 AR_medium AR_large".split())
_COCO_KEYPOINTS = 17
_DIGITS = 2  # of coordinates in COCO's files


class CocoPrecision:
    """Measure the average precision of boxes, masks or keypoints with pycocotools.

    Coordinates are rounded to 0.01 pixel as in COCO's files, so that the values are those of the file of results.

    Args:
        kind: `boxes`, `instances` (masks) or `keypoints`.
        category_ids: the id of each class in files of COCO.
        sigmas: for keypoints, the standard deviation of each in the similarity of objects; None has those of COCO's 17
            keypoints.

    Attributes:
        results: list of dicts, the predictions in the format of COCO's servers.

    Raises:
        ImportError: if pycocotools is not installed.
        ValueError: if `kind` is unknown, or `sigmas` is given for another kind.
    """

    def __init__(self, kind: str, category_ids: Sequence[int], sigmas: Sequence[float] | None = None) -> None:
        checks.check_choice("kind", kind, _TYPES)
        if sigmas is not None and kind != "keypoints":
            raise ValueError(f"sigmas must be None for kind={kind!r}; got {checks.quoted(sigmas)}")
        import_pycocotools()
        self.kind, self.category_ids, self.sigmas = kind, tuple(category_ids), sigmas
        self.results: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []
        self._precision: Any = None

    def add(self, image_id: int | str, truth: Any, labels: np.ndarray, scores: np.ndarray, shapes: np.ndarray) -> None:
        """Add an image.

        Args:
            image_id: id of the image, which no other image has.
            truth: an `Answer` with `labels` and `boxes`, `masks` or `keypoints`; `crowd` and `areas` may be None.
            labels: integers (objects,), the predicted classes.
            scores: (objects,).
            shapes: the predicted boxes (objects, 4), left, top, right and bottom; masks (objects, height, width); or
                keypoints (objects, keypoints, 3), x, y and score.

        Raises:
            ValueError: if there are not as many `sigmas` as keypoints.
        """
        height, width = truth.masks.shape[1:] if self.kind == "instances" else (0, 0)  # else not used
        self._images.append({"id": image_id, "height": height, "width": width})
        name, encode = _SHAPES[self.kind]
        count = _COCO_KEYPOINTS if self.sigmas is None else len(self.sigmas)
        if self.kind == "keypoints" and truth.keypoints.shape[1] != count:
            raise ValueError(f"sigmas must be one number for each of {truth.keypoints.shape[1]} keypoints; got {count}")
        for n, (label, shape) in enumerate(zip(truth.labels, getattr(truth, name), strict=True)):
            row = {"id": len(self._truth) + 1, "image_id": image_id, "category_id": self.category_ids[label]}
            row |= encode(shape) | {"iscrowd": 0 if truth.crowd is None else int(truth.crowd[n])}
            if self.kind == "keypoints":
                row |= _box(truth.boxes[n]) | {"num_keypoints": int((shape[:, 2] > 0).sum())}
            row["area"] = _area(row) if truth.areas is None else float(truth.areas[n])
            self._truth.append(row)
        for label, score, shape in zip(labels, scores, shapes, strict=True):
            row = {"image_id": image_id, "category_id": self.category_ids[label], "score": float(score)}
            self.results.append(row | encode(shape))

    def values(self) -> dict[str, float]:
        """Return COCO's `AP`, `AP50`, `AP75` and so on, in [0, 1].

        The others are `AP_small`, `AP_medium` and `AP_large`, and the recalls `AR1`, `AR10`, `AR100`, `AR_small`,
        `AR_medium` and `AR_large`; for keypoints `AR`, `AR50` and `AR75`. What no object belongs to is left out.

        Raises:
            ValueError: if no object is labelled.
        """
        coco, evaluation, _ = import_pycocotools()
        ids = [{"id": number} for number in self.category_ids]
        with contextlib.redirect_stdout(io.StringIO()):  # they print each step
            truth, found = (_opened(coco, self._images, rows, ids) for rows in (self._truth, []))
            if self.results:
                found = truth.loadRes([dict(row) for row in self.results])  # it adds to the rows
            measured = evaluation(truth, found, _TYPES[self.kind])
            if self.sigmas is not None:
                measured.params.kpt_oks_sigmas = np.asarray(self.sigmas, np.float64)
            measured.evaluate()
            measured.accumulate()
            measured.summarize()
        self._precision = measured.eval["precision"]
        names = _KEYPOINT_STATS if self.kind == "keypoints" else _STATS
        values = {name: float(x) for name, x in zip(names, measured.stats, strict=True) if x >= 0}
        if not values:
            raise ValueError("data must contain a labelled object that is not a crowd; there is none")
        return values

    def per_class(self) -> dict[int, dict[str, float]]:
        """Return {class: {"AP"}} of the classes with objects, in [0, 1]."""
        if self._precision is None:
            self.values()
        order = np.argsort(self.category_ids)  # COCOeval sorts the ids
        of_class = {int(n): self._precision[:, :, k, 0, -1] for k, n in enumerate(order)}
        return {n: {"AP": float(of_class[n].mean())} for n in sorted(of_class) if of_class[n].max() >= 0}


def import_pycocotools():
    """Return the classes `COCO` and `COCOeval`, and the module of masks.

    Raises:
        ImportError: if pycocotools is not installed.
    """
    needed = f"COCO's average precision needs pycocotools: {install_command('coco')}"
    names = ("coco", "cocoeval", "mask")
    coco, evaluation, mask = (import_optional(f"pycocotools.{name}", needed) for name in names)
    return coco.COCO, evaluation.COCOeval, mask


def _opened(coco, images, rows, categories):
    """Return the images and annotations as an object of pycocotools."""
    opened = coco()
    opened.dataset = {"images": images, "annotations": rows, "categories": categories}
    opened.createIndex()
    return opened


def _box(edges):
    left, top, right, bottom = np.asarray(edges, np.float64)
    return {"bbox": [round(float(x), _DIGITS) for x in (left, top, right - left, bottom - top)]}


def _runs(mask):
    runs = import_pycocotools()[2].encode(np.asfortranarray(mask, np.uint8))
    return {"segmentation": {"size": [int(side) for side in runs["size"]], "counts": runs["counts"].decode("ascii")}}


def _points(points):
    return {"keypoints": [round(float(x), _DIGITS) for x in np.ravel(points)]}


def _area(row):
    """Return the pixels of the mask, or the area of the box, of an object."""
    if "segmentation" in row:
        return float(import_pycocotools()[2].area(row["segmentation"]))
    return float(row["bbox"][2] * row["bbox"][3])


# kind -> attribute of `Answer`, and function of one object to what its annotation and its result state
_SHAPES = {"boxes": ("boxes", _box), "instances": ("masks", _runs), "keypoints": ("keypoints", _points)}
