"""Scores of maps that are added image by image: mIoU, panoptic quality, errors of depth; and PCK of keypoints."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.data.answers import VOID

_DELTA = 1.25


class ClassIoU:
    """Measure the mean intersection over union of label maps (mIoU).

    The IoU of a class is TP / (TP + FP + FN) over the pixels of all images. A class that occurs neither in the truth
    nor in the predictions has none, and is not in the mean (PASCAL VOC; Cityscapes, arXiv 1604.01685, section 4.1).

    Args:
        classes: number of classes.

    Raises:
        ValueError: if the number is not a positive integer.
    """

    def __init__(self, classes: int) -> None:
        self.classes = checks.check_integer("classes", classes)
        self._pixels = np.zeros((classes, classes + 1), np.int64)  # the last column is no class

    def add(self, truth: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Add an image.

        Args:
            truth: integers (height, width); pixels with 255 are ignored.
            predicted: integers (height, width); a value that is no class is a wrong prediction.

        Raises:
            ValueError: if the shapes differ, or a value of `truth` is neither a class nor 255.
        """
        true, found = (each[np.asarray(truth) != VOID].astype(np.int64) for each in _maps(truth, predicted))
        if true.size and not 0 <= true.min() <= true.max() < self.classes:
            got = f"{true.min()} to {true.max()}"
            raise ValueError(f"truth must be classes from 0 to {self.classes - 1}, or {VOID}; got {got}")
        found = np.where((found >= 0) & (found < self.classes), found, self.classes)
        pairs = np.bincount(true * (self.classes + 1) + found, minlength=self._pixels.size)
        self._pixels += pairs.reshape(self._pixels.shape)

    def values(self) -> dict[str, float]:
        """Return `mIoU`, `pixel_accuracy` and `mean_accuracy`, in [0, 1].

        The mean accuracy is over the classes that occur in the truth.

        Raises:
            ValueError: if no pixel has a class.
        """
        if not self._pixels.any():
            raise ValueError("data must contain a pixel with a class; all are void")
        rows = self.per_class().values()
        means = {name: float(np.mean([row[name] for row in rows if name in row])) for name in ("IoU", "accuracy")}
        correct = float(np.trace(self._pixels) / self._pixels.sum())
        return {"mIoU": means["IoU"], "pixel_accuracy": correct, "mean_accuracy": means["accuracy"]}

    def per_class(self) -> dict[int, dict[str, float]]:
        """Return {class: {"IoU", "accuracy"}}, in [0, 1].

        A class that does not occur has none, and one that is not in the truth has no accuracy."""
        correct, truth, predicted = np.diag(self._pixels), self._pixels.sum(1), self._pixels[:, :-1].sum(0)
        return _per_class(IoU=_shares(correct, truth + predicted - correct), accuracy=_shares(correct, truth))


class PanopticQuality:
    """Measure the panoptic quality (PQ) of segments that do not overlap.

    Source: Kirillov et al. 2019, arXiv 1801.00868, sections 4.1 and 4.2; equal to panopticapi, except that all crowd
    regions of a class in an image count, where panopticapi takes the last.

    A predicted and a true segment of one class match if their IoU is above 0.5; void pixels of the truth are not in the
    union. A predicted segment without a match is no false positive if more than half of it is void or crowd of its
    class. PQ = SQ * RQ; SQ is the mean IoU of matches, RQ is TP / (TP + FP / 2 + FN / 2). A class without matches and
    errors is not in the means.

    Args:
        classes: number of classes.
        stuff: indices of the classes without instances; the means over these and over the others are also values.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, classes: int, stuff: Sequence[int] = ()) -> None:
        self.classes, stuff = checks.check_integer("classes", classes), checks.check_indices("stuff", stuff)
        if stuff and max(stuff) >= classes:
            raise ValueError(f"stuff must be indices of {classes} classes; got {stuff}")
        self._is_stuff = np.isin(np.arange(classes), stuff)
        self._found, self._wrong, self._missed, self._iou = np.zeros((4, classes))

    def add(
        self,
        truth: npt.ArrayLike,
        labels: npt.ArrayLike,
        predicted: npt.ArrayLike,
        predicted_labels: npt.ArrayLike,
        crowd: npt.ArrayLike | None = None,
    ) -> None:
        """Add an image.

        Args:
            truth: integers (height, width), the true segment of each pixel; -1 is void.
            labels: integers (segments,), the class of each.
            predicted: integers (height, width), the predicted segment of each pixel; -1 is none.
            predicted_labels: integers (predicted segments,); segments without pixels are ignored.
            crowd: bool (segments,), which true segments are regions of many objects; None is none.

        Raises:
            ValueError: if the shapes differ, or a segment or class is out of range.
        """
        true, found = _maps(truth, predicted, np.int64)
        mine, others = np.asarray(labels, np.int64), np.asarray(predicted_labels, np.int64)
        is_crowd = np.zeros(mine.shape, bool) if crowd is None else np.asarray(crowd, bool)
        for name, ids, count in (("truth", true, len(mine)), ("predicted", found, len(others))):
            if ids.min() < -1 or ids.max() >= count:
                got = f"{ids.min()} to {ids.max()}"
                raise ValueError(f"{name} must be indices of its {count} segments, or -1; got {got}")
        pairs = (true + 1) * (len(others) + 1) + found + 1
        pixels = np.bincount(pairs.ravel(), minlength=(len(mine) + 1) * (len(others) + 1))
        pixels = pixels.reshape(len(mine) + 1, len(others) + 1)
        areas, void, shared = pixels.sum(0)[1:], pixels[0, 1:], pixels[1:, 1:]
        used = np.concatenate([mine, others[areas > 0]])
        if used.size and not 0 <= used.min() <= used.max() < self.classes:
            raise ValueError(f"labels must be from 0 to {self.classes - 1}; got {used.min()} to {used.max()}")
        is_same, union = mine[:, None] == others, pixels.sum(1)[1:, None] + areas - shared - void
        matches = is_same & ~is_crowd[:, None] & (2 * shared > union)
        is_ignored = 2 * (void + (shared * (is_same & is_crowd[:, None])).sum(0)) > areas
        wrong = others[(areas > 0) & ~matches.any(0) & ~is_ignored]
        rows, columns = np.nonzero(matches)
        np.add.at(self._found, mine[rows], 1)
        np.add.at(self._iou, mine[rows], shared[rows, columns] / union[rows, columns])
        np.add.at(self._missed, mine[~is_crowd & ~matches.any(1)], 1)
        np.add.at(self._wrong, wrong, 1)

    def values(self) -> dict[str, float]:
        """Return `PQ`, `SQ` and `RQ`, in [0, 1].

        With stuff, there are also those of things and of stuff, such as `PQ_things`.

        Raises:
            ValueError: if there is no segment.
        """
        rows, values = self.per_class(), {}
        if not rows:
            raise ValueError("data must contain a segment; none was added")
        things, stuff = ([n for n in rows if self._is_stuff[n] == flag] for flag in (False, True))
        groups = {"": [*rows]} | ({"_things": things, "_stuff": stuff} if self._is_stuff.any() else {})
        for suffix, group in groups.items():
            for name in ("PQ", "SQ", "RQ") if group else ():
                values[name + suffix] = float(np.mean([rows[n][name] for n in group]))
        return values

    def per_class(self) -> dict[int, dict[str, float]]:
        """Return {class: {"PQ", "SQ", "RQ"}} of the classes with a segment, in [0, 1]."""
        total = self._found + self._wrong / 2 + self._missed / 2
        quality = _shares(self._iou, np.where(total > 0, np.maximum(self._found, 1), 0))  # 0 without a match
        return _per_class(PQ=_shares(self._iou, total), SQ=quality, RQ=_shares(self._found, total))


class DepthErrors:
    """Measure the errors of depth maps: AbsRel, RMSE, and delta1, delta2 and delta3.

    Each is computed over the known pixels of an image, and then averaged over the images, as in the code of Depth
    Anything. Pixels are known if their true depth is above 0 and in the range; predictions are clipped to the range
    (Eigen et al. 2014, arXiv 1406.2283). delta1 is the share of pixels with max(p / t, t / p) < 1.25, delta2 and delta3
    those for 1.25 ** 2 and 1.25 ** 3.

    Args:
        min_depth, max_depth: range in metres, such as 0.001 to 80 for KITTI and to 10 for NYU; None has no upper end.

    Raises:
        ValueError: if the range is empty.
    """

    def __init__(self, min_depth: float = 1e-3, max_depth: float | None = None) -> None:
        self.min_depth = checks.check_positive("min_depth", min_depth)
        self.max_depth = np.inf if max_depth is None else checks.check_positive("max_depth", max_depth)
        if self.max_depth <= self.min_depth:
            raise ValueError(f"max_depth must be above min_depth={min_depth}; got {max_depth}")
        self._rows: list[tuple[Any, ...]] = []

    def known(self, truth: np.ndarray) -> np.ndarray:
        """Return which pixels of a true depth map are measured.

        Args:
            truth: metres (height, width).

        Returns:
            bool (height, width)
        """
        return (truth >= self.min_depth) & (truth <= self.max_depth)

    def add(self, truth: npt.ArrayLike, predicted: npt.ArrayLike) -> None:
        """Add an image; without known pixels it is not counted.

        Args:
            truth: metres (height, width); 0 is unknown.
            predicted: metres (height, width), see `align_disparity` for the answers of relative models.

        Raises:
            ValueError: if the shapes differ.
        """
        true, found = _maps(truth, predicted, np.float64)
        known = self.known(true)
        if known.any():
            true, found = true[known], np.clip(found[known], self.min_depth, self.max_depth)
            ratios = np.maximum(true / found, found / true)
            shares = (np.mean(ratios < _DELTA**power) for power in (1, 2, 3))
            errors = np.mean(np.abs(found - true) / true), np.sqrt(np.mean((found - true) ** 2))
            self._rows.append((*errors, *shares))

    def values(self) -> dict[str, float]:
        """Return `abs_rel`, `rmse`, `delta1`, `delta2` and `delta3`.

        `rmse` is in metres, and the last three are in [0, 1].

        Raises:
            ValueError: if no image has a known pixel.
        """
        if not self._rows:
            got = f"{self.min_depth} to {self.max_depth}"
            raise ValueError(f"data must contain a pixel with a known depth in the range; none is in {got}")
        names = ("abs_rel", "rmse", "delta1", "delta2", "delta3")
        return dict(zip(names, np.mean(self._rows, 0).tolist(), strict=True))


def align_disparity(
    disparity: npt.ArrayLike, truth: npt.ArrayLike, known: npt.ArrayLike, max_depth: float
) -> np.ndarray:
    """Return the depth of a disparity that is known up to scale and shift.

    The scale and shift are the least-squares fit to 1 / truth over the known pixels of the image (MiDaS, arXiv
    1907.01341, section 6). Aligned disparities below 1 / max_depth are raised to it.

    Args:
        disparity: (height, width), the answer of a relative depth model.
        truth: metres (height, width).
        known: bool (height, width), pixels of the truth to use; there must be one.
        max_depth: largest depth in metres.

    Returns:
        float64 (height, width), metres.

    Raises:
        ValueError: if the shapes differ, no pixel is known, or max_depth is not positive.
    """
    true, found = _maps(truth, disparity, np.float64)
    fitted, max_depth = np.asarray(known, bool), checks.check_positive("max_depth", max_depth)
    if not fitted.any():
        raise ValueError("known must contain a true pixel; the scale and shift are fitted to them")
    target, spread = 1 / true[fitted], found - found[fitted].mean()
    scale = (spread[fitted] * target).sum() / ((spread[fitted] ** 2).sum() or 1.0)
    return 1 / np.maximum(scale * spread + target.mean(), 1 / max_depth)


class KeypointAccuracy:
    """Measure the share of labelled keypoints that are near their true place (PCK).

    A keypoint is correct if its distance is at most a share of the longer side of the box of its object.

    Args:
        keypoints: number of keypoints of an object.
        share: share of the longer side.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, keypoints: int, share: float = 0.2) -> None:
        self.share = checks.check_positive("share", share)
        self._counts = np.zeros((2, checks.check_integer("keypoints", keypoints)), np.int64)

    def add(self, truth: np.ndarray, boxes: np.ndarray, predicted: np.ndarray) -> None:
        """Add the objects of an image.

        Args:
            truth: (objects, keypoints, 3): x, y and visibility; 0 is not labelled.
            boxes: (objects, 4): left, top, right and bottom edge.
            predicted: (objects, keypoints, 2): x and y.
        """
        sides = np.max(boxes[:, 2:] - boxes[:, :2], axis=-1, initial=0)
        labelled = truth[..., 2] > 0
        near = np.linalg.norm(predicted - truth[..., :2], axis=-1) <= self.share * sides[:, None]
        self._counts += (near & labelled).sum(0), labelled.sum(0)

    def values(self) -> dict[str, float]:
        """Return `pck`, in [0, 1].

        Raises:
            ValueError: if no keypoint is labelled.
        """
        correct, labelled = self._counts.sum(1)
        if not labelled:
            raise ValueError("data must contain a labelled keypoint; there is none")
        return {"pck": float(correct / labelled)}

    def per_class(self) -> dict[int, dict[str, float]]:
        """Return {keypoint: {"pck"}} of the keypoints with labels, in [0, 1]."""
        return _per_class(pck=_shares(*self._counts))


def _shares(part, whole):
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _per_class(**shares):
    """Return {class: {name: share}} without shares that are NaN, and without classes that have none."""
    rows = {}
    for name, values in shares.items():
        for n in np.flatnonzero(~np.isnan(values)).tolist():
            rows.setdefault(n, {})[name] = float(values[n])
    return dict(sorted(rows.items()))


def _maps(truth: Any, predicted: Any, dtype: Any = None) -> tuple[np.ndarray, np.ndarray]:
    truth, predicted = np.asarray(truth, dtype), np.asarray(predicted, dtype)
    if truth.shape != predicted.shape or truth.ndim != 2 or not truth.size:
        raise ValueError(f"truth and predicted must be maps (height, width); got {truth.shape} and {predicted.shape}")
    return truth, predicted
