"""Average precision of boxes, masks and keypoints as COCO defines it, by pycocotools (extra `coco`)."""

import contextlib
import io

import numpy as np

from keras_vit.data.answers import areas_of
from keras_vit.versions import import_optional, install_command

# kind of a source -> attribute of `Answer`, and iouType of COCOeval
_KINDS = {"boxes": ("boxes", "bbox"), "instances": ("masks", "segm"), "keypoints": ("keypoints", "keypoints")}
_NAMES = "AP AP50 AP75 AP_small AP_medium AP_large AR1 AR10 AR100 AR_small AR_medium AR_large".split()
_KEYPOINT_NAMES = "AP AP50 AP75 AP_medium AP_large AR AR50 AR75 AR_medium AR_large".split()
COCO_KEYPOINTS = 17
_DIGITS = 2  # of coordinates in COCO's files


def import_pycocotools():
    """Return the modules `mask`, `coco` and `cocoeval`; raise an ImportError if pycocotools is not installed."""
    needed = f"COCO's average precision needs pycocotools: {install_command('coco')}"
    return [import_optional(f"pycocotools.{name}", needed) for name in ("mask", "coco", "cocoeval")]


def object_rows(kind, image_id, category_ids, labels, shapes):
    """Return objects of an image as COCO's files state them, a list of dicts.

    Coordinates are rounded as in these files, so that scores are those of the file of results.

    Args:
        kind: `boxes`, `instances` or `keypoints`.
        image_id: id of the image.
        category_ids: the id of each class in COCO's files.
        labels: integers (objects,), the classes.
        shapes: boxes (objects, 4): left, top, right and bottom edge; masks (objects, height, width); or keypoints
            (objects, keypoints, 3): x, y, and visibility or score.
    """
    mask, _, _ = import_pycocotools()
    rows = []
    for label, shape in zip(labels, shapes, strict=True):
        row = {"image_id": image_id, "category_id": category_ids[label]}
        if kind == "boxes":
            row["bbox"] = _box(shape)
        elif kind == "instances":
            runs = mask.encode(np.asfortranarray(shape, np.uint8))
            row["segmentation"] = runs | {"counts": runs["counts"].decode("ascii")}
        else:
            row["keypoints"] = np.round(np.ravel(shape).astype(np.float64), _DIGITS).tolist()
        rows.append(row)
    return rows


def truth_rows(kind, image_id, category_ids, truth):
    """Return the true objects of an image as COCO's files state them, without their ids.

    Args:
        kind, image_id, category_ids: as in `object_rows`.
        truth: an `Answer`. Without `areas`, they are those of the masks or boxes.
    """
    areas = truth.areas
    if areas is None:
        areas = areas_of(truth.masks) if kind == "instances" else (truth.boxes[:, 2:] - truth.boxes[:, :2]).prod(1)
    rows = object_rows(kind, image_id, category_ids, truth.labels, getattr(truth, _KINDS[kind][0]))
    for n, (row, area, is_crowd) in enumerate(zip(rows, areas, crowd_of(truth), strict=True)):
        row |= {"area": float(area), "iscrowd": int(is_crowd)}
        if kind == "keypoints":
            row |= {"bbox": _box(truth.boxes[n]), "num_keypoints": int((truth.keypoints[n, :, 2] > 0).sum())}
    return rows


def crowd_of(truth):
    """Return which objects of an `Answer` are regions of many objects: bool (objects,)."""
    return np.zeros(len(truth.labels), bool) if truth.crowd is None else truth.crowd


def coco_scores(kind, category_ids, image_ids, truth, results):
    """Return COCO's numbers by name, without those that no object belongs to, and {"AP": array (classes,)}.

    Args:
        kind, category_ids: as in `object_rows`.
        image_ids: ids of all images.
        truth, results: the rows of all images; those of results have a `score`.
    """
    _, coco, cocoeval = import_pycocotools()
    true = coco.COCO()
    true.dataset = {
        "images": [{"id": number, "height": 0, "width": 0} for number in image_ids],  # the sides are read, not used
        "categories": [{"id": number} for number in category_ids],
        "annotations": [row | {"id": n + 1} for n, row in enumerate(truth)],
    }
    with contextlib.redirect_stdout(io.StringIO()):  # they print each step
        true.createIndex()
        found = true.loadRes([dict(row) for row in results]) if results else coco.COCO()  # it adds to the rows
        measured = cocoeval.COCOeval(true, found, _KINDS[kind][1])
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    names = _KEYPOINT_NAMES if kind == "keypoints" else _NAMES
    values = {name: value for name, value in zip(names, measured.stats, strict=True) if value >= 0}
    precision = measured.eval["precision"][:, :, :, 0, -1].mean((0, 1))  # of all areas; -1 for a class without objects
    places = np.unique(category_ids, return_inverse=True)[1]  # COCOeval sorts the ids
    return values, {"AP": np.where(precision < 0, np.nan, precision)[places]}


def _box(edges):
    left, top, right, bottom = np.asarray(edges, np.float64)
    return np.round([left, top, right - left, bottom - top], _DIGITS).tolist()
