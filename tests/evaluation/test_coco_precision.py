"""COCO's average precision: against COCOeval called here on files of annotations and results."""

import contextlib
import io
import json
import types

import numpy as np
import pytest

from keras_vit.evaluation.coco_precision import coco_scores, object_rows, truth_rows

mask = pytest.importorskip("pycocotools.mask", reason="needs the extra [coco]")
COCO = pytest.importorskip("pycocotools.coco").COCO
COCOeval = pytest.importorskip("pycocotools.cocoeval").COCOeval

SIZE = (40, 60)
CATEGORIES = (7, 3, 90)  # not in the order of their ids
TYPES = {"boxes": "bbox", "instances": "segm", "keypoints": "keypoints"}


def answer(labels, boxes, keypoints=None, crowd=None, areas=None):
    """An `Answer`, whose masks are ellipses in the boxes."""
    boxes = np.asarray(boxes, "float32").reshape(-1, 4)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    masks = [
        ((x - (left + right) / 2) / (right - left)) ** 2 + ((y - (top + bottom) / 2) / (bottom - top)) ** 2 < 0.25
        for left, top, right, bottom in boxes
    ]
    return types.SimpleNamespace(
        labels=np.asarray(labels, int),
        boxes=boxes,
        masks=np.reshape(masks, (-1, *SIZE)),
        keypoints=keypoints,
        crowd=None if crowd is None else np.asarray(crowd, bool),
        areas=areas,
    )


def random_boxes(rng, count):
    corners = rng.uniform(0, (34, 24), (count, 2))
    return np.round(np.concatenate([corners, corners + rng.uniform(4, 16, (count, 2))], -1), 2)


def random_images(kind, seed):
    """Pairs of truth and prediction; some have no truth, no prediction, crowds, ties or duplicates."""
    rng, images = np.random.default_rng(seed), []
    for number in range(10):
        count = 0 if number == 3 else rng.integers(1, 6)
        boxes, labels = random_boxes(rng, count), rng.integers(0, 2, count)  # the last class has no truth
        points = np.round(np.concatenate([rng.uniform(0, 40, (count, 17, 2)), rng.integers(0, 3, (count, 17, 1))], -1))
        points[rng.random(count) < 0.2, :, 2] = 0  # persons without keypoints
        crowd, areas = rng.random(count) < 0.2, rng.uniform(10, 20000, count)
        if kind == "keypoints":
            labels = labels * 0
        truth = answer(labels, boxes, points, None if number == 1 else crowd, None if number == 2 else areas)
        copies = rng.integers(0, count, 2 * count) if count and number != 4 else np.zeros(0, int)  # also duplicates
        near = np.round(boxes[copies] + rng.normal(0, 1, (len(copies), 4)), 2)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        others = random_boxes(rng, 2)
        found = answer(np.r_[labels[copies], rng.integers(0, 3, 2)], np.concatenate([near, others]))
        found.keypoints = np.concatenate([points[copies], rng.uniform(0, 40, (2, 17, 3))]) + rng.normal(
            0, 2, (len(copies) + 2, 17, 3)
        )
        if kind == "keypoints":
            found.labels = found.labels * 0
        found.scores = np.round(rng.random(len(found.labels)), 1).astype("float32")  # many ties
        images.append((truth, found))
    return images


def annotations(kind, images, ids):
    """The file of annotations, written object by object as COCO's."""
    rows = []
    for image_id, (truth, _) in zip(ids, images, strict=True):
        for n, label in enumerate(truth.labels):
            left, top, right, bottom = truth.boxes[n].astype(float)
            box = [round(left, 2), round(top, 2), round(right - left, 2), round(bottom - top, 2)]
            runs = mask.encode(np.asfortranarray(truth.masks[n].astype("uint8")))
            area = float(mask.area(runs)) if kind == "instances" else box[2] * box[3]
            row = {"id": 100 + len(rows), "image_id": image_id, "category_id": CATEGORIES[label], "bbox": box}
            row["area"] = area if truth.areas is None else float(truth.areas[n])
            row["iscrowd"] = 0 if truth.crowd is None else int(truth.crowd[n])
            row["segmentation"] = {"size": runs["size"], "counts": runs["counts"].decode()}
            if kind == "keypoints":
                row["keypoints"] = truth.keypoints[n].astype(int).ravel().tolist()
                row["num_keypoints"] = int((truth.keypoints[n][:, 2] > 0).sum())
            rows.append(row)
    sides = {"height": SIZE[0], "width": SIZE[1]}
    categories = [{"id": n, "name": str(n)} for n in CATEGORIES]
    return {"images": [{"id": n, **sides} for n in ids], "annotations": rows, "categories": categories}


def shapes(kind, found):
    return {"boxes": found.boxes, "instances": found.masks, "keypoints": found.keypoints}[kind]


def measure(kind, images, ids):
    """The values, the AP of each class that has any, and the rows of the file of results."""
    truths, results = [], []
    for image_id, (truth, found) in zip(ids, images, strict=True):
        truths += truth_rows(kind, image_id, CATEGORIES, truth)
        rows = object_rows(kind, image_id, CATEGORIES, found.labels, shapes(kind, found))
        results += [row | {"score": float(score)} for row, score in zip(rows, found.scores, strict=True)]
    values, columns = coco_scores(kind, CATEGORIES, ids, truths, results)
    return values, {n: x for n, x in enumerate(columns["AP"]) if x >= 0}, results


def official(kind, images, ids, results, folder):
    """COCOeval of the two files; its twelve or ten numbers and the AP of each class."""
    (folder / "truth.json").write_text(json.dumps(annotations(kind, images, ids)))
    (folder / "results.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(folder / "truth.json")
        evaluation = COCOeval(truth, truth.loadRes(str(folder / "results.json")), TYPES[kind])
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        stats, of_class = evaluation.stats, {}
        for n, number in enumerate(CATEGORIES):
            evaluation.params.catIds = [number]
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            of_class[n] = evaluation.stats[0]
    return stats, of_class


@pytest.mark.parametrize("kind", ["boxes", "instances", "keypoints"])
def test_equal_to_pycocotools(kind, tmp_path, capsys):
    images, ids = random_images(kind, 0), [int(n) for n in np.random.default_rng(1).permutation(99)[:10]]
    values, of_classes, results = measure(kind, images, ids)
    assert capsys.readouterr() == ("", "")
    stats, expected_of_classes = official(kind, images, ids, results, tmp_path)
    expected = [x for x in stats if x >= 0]
    np.testing.assert_array_equal([*values.values()], expected)
    assert 0.05 < values["AP"] < 0.95 and len(expected) >= 10
    assert of_classes == pytest.approx({n: x for n, x in expected_of_classes.items() if x >= 0})


def test_results_are_in_the_format_of_coco():
    truth = answer([0], [[1, 2, 11, 12]])
    for kind, key in (("boxes", "bbox"), ("instances", "segmentation"), ("keypoints", "keypoints")):
        found = answer([1], [[1.234, 2, 11.5, 12]])
        found.keypoints, found.scores = np.arange(51.0).reshape(1, 17, 3) + 0.004, [0.5]
        truth.keypoints = found.keypoints
        [row] = measure(kind, [(truth, found)], [5])[2]
        assert (row["image_id"], row["category_id"], row["score"]) == (5, 3, 0.5) and len(row) == 4
        if kind == "boxes":
            assert row[key] == [1.23, 2.0, 10.27, 10.0]
        elif kind == "instances":
            assert (mask.decode(row[key]) == found.masks[0]).all() and isinstance(json.dumps(row), str)
        else:
            assert row[key] == [*map(float, range(51))]


def test_perfect_and_empty_answers():
    truth = answer([0, 1, 1], [[0, 0, 30, 30], [5, 5, 15, 15], [30, 5, 50, 25]])
    truth.scores = np.array([0.5, 0.5, 0.5])
    nothing = answer([], [])
    nothing.scores = np.zeros(0)
    assert measure("boxes", [(truth, truth)], ["a"])[0]["AP"] == 1.0
    values, of_classes, results = measure("instances", [(truth, nothing)], [0])
    assert (values["AP"], of_classes, results) == (0.0, {0: 0.0, 1: 0.0}, [])
    partly = answer([1, 1], truth.boxes[1:])
    partly.scores = np.array([0.9, 0.8])
    assert measure("boxes", [(truth, partly)], [0])[0]["AP"] == 0.5  # one class is missing


def test_without_pycocotools(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pycocotools.coco", None)
    with pytest.raises(ImportError, match="needs pycocotools: pip install"):
        object_rows("boxes", 1, CATEGORIES, [], [])
