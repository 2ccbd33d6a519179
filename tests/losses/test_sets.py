"""Losses over sets of objects and over pixels against their definitions in NumPy, and gradients by differences."""

import keras
import numpy as np
import pytest
from faults import for_each
from scipy.optimize import linear_sum_assignment
from scipy.special import expit, log_softmax, softmax

from keras_vit.tasks import DetectionLoss, MaskLoss, SegmentationLoss

RNG = np.random.default_rng(0)
BATCH, OBJECTS, QUERIES, CLASSES = 3, 4, 6, 3
LABELS = np.array([[0, 2, 1, 2], [-1, 1, -1, 0], [-1, -1, -1, -1]])  # the last image has no object


def cross_entropy(logits, matches, no_object):
    """The weighted mean over the queries of the batch; `matches` has (image, object, query)."""
    classes = np.full(logits.shape[:2], CLASSES)
    for image, number, query in matches:
        classes[image, query] = LABELS[image, number]
    weights = np.where(classes == CLASSES, no_object, 1)
    entropy = -np.take_along_axis(log_softmax(logits, -1), classes[..., None], -1)[..., 0]
    return (weights * entropy).sum() / weights.sum()


def matched(logits, cost_of):
    """Return (image, object, query) of the cheapest assignment; `cost_of` has the costs of three indices."""
    matches = []
    for image, labels in enumerate(LABELS):
        which = np.flatnonzero(labels >= 0)
        chances = softmax(logits[image], -1)
        costs = [
            [cost_of(image, n, q) - chances[q, labels[n]] * cost_of.classes for q in range(QUERIES)] for n in which
        ]
        rows, columns = linear_sum_assignment(np.reshape(costs, (len(which), QUERIES)))
        matches += [(image, which[row], column) for row, column in zip(rows, columns, strict=True)]
    return matches


def iou(first, second):
    """The generalized intersection over union of two boxes, from their edges."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = first, second
    edges = [(ax - aw / 2, ax + aw / 2, bx - bw / 2, bx + bw / 2), (ay - ah / 2, ay + ah / 2, by - bh / 2, by + bh / 2)]
    shared = np.prod([max(0, min(a1, b1) - max(a0, b0)) for a0, a1, b0, b1 in edges])
    around = np.prod([max(a1, b1) - min(a0, b0) for a0, a1, b0, b1 in edges])
    union = aw * ah + bw * bh - shared
    return shared / union - (around - union) / around


def detection(boxes, logits, found, classes, l1, giou, no_object):
    def cost(image, n, q):
        pair = boxes[image, n], found[image, q]
        return l1 * np.abs(pair[0] - pair[1]).sum() - giou * iou(*pair)

    cost.classes = classes
    matches = matched(logits, cost)
    errors = [
        l1 * np.abs(boxes[image, n] - found[image, q]).sum() + giou * (1 - iou(boxes[image, n], found[image, q]))
        for image, n, q in matches
    ]
    return classes * cross_entropy(logits, matches, no_object) + sum(errors) / max((LABELS >= 0).sum(), 1)


def at(values, points):
    """Bilinear values of a map at points, 0 around it."""
    padded = np.pad(values.astype("float64"), 1)
    x, y = points[:, 0] * values.shape[1] + 0.5, points[:, 1] * values.shape[0] + 0.5
    column, row = np.floor(x).astype(int), np.floor(y).astype(int)
    across, down = x - column, y - row
    top = padded[row, column] * (1 - across) + padded[row, column + 1] * across
    bottom = padded[row + 1, column] * (1 - across) + padded[row + 1, column + 1] * across
    return top * (1 - down) + bottom * down


def entropy(true, logits):
    return (np.logaddexp(0, logits) - true * logits).mean()


def dice(true, logits):
    return 1 - (2 * (true * expit(logits)).sum() + 1) / (true.sum() + expit(logits).sum() + 1)


def mask_loss(masks, outputs, classes, mask, dice_weight, no_object):
    points, candidates, total = outputs["points"], outputs["candidates"], 0
    for logits, maps in zip(outputs["class_logits"], outputs["mask_logits"], strict=True):

        def cost(image, n, q, maps=maps):
            pair = at(masks[image, n], points[image]), at(maps[image, ..., q], points[image])
            return mask * entropy(*pair) + dice_weight * dice(*pair)

        cost.classes = classes
        matches, errors = matched(logits, cost), 0
        for image, n, q in matches:
            uncertain = np.argsort(np.abs(at(maps[image, ..., q], candidates[image])), kind="stable")
            count = points.shape[1] * 3 // 4
            chosen = np.concatenate([candidates[image][uncertain[:count]], points[image, count:]])
            pair = at(masks[image, n], chosen), at(maps[image, ..., q], chosen)
            errors += mask * entropy(*pair) + dice_weight * dice(*pair)
        total += classes * cross_entropy(logits, matches, no_object) + errors / max(len(matches), 1)
    return total


def detection_case():
    targets = {"labels": LABELS, "boxes": RNG.uniform(0.2, 0.5, (BATCH, OBJECTS, 4)).astype("float32")}
    outputs = {
        "logits": RNG.normal(size=(BATCH, QUERIES, CLASSES + 1)).astype("float32"),
        "boxes": RNG.uniform(0.1, 0.9, (BATCH, QUERIES, 4)).astype("float32"),
    }
    return targets, outputs


def mask_case(predictions=2):
    targets = {"labels": LABELS, "masks": RNG.integers(0, 2, (BATCH, OBJECTS, 12, 16)).astype("uint8")}
    outputs = {
        "class_logits": [RNG.normal(size=(BATCH, QUERIES, CLASSES + 1)).astype("float32") for _ in range(predictions)],
        "mask_logits": [RNG.normal(size=(BATCH, 3, 4, QUERIES)).astype("float32") for _ in range(predictions)],
        "points": RNG.uniform(size=(BATCH, 20, 2)).astype("float32"),
        "candidates": RNG.uniform(size=(BATCH, 60, 2)).astype("float32"),
    }
    return targets, outputs


@for_each("weights", [(1.0, 5.0, 2.0, 0.1), (0.5, 0.0, 3.0, 0.4)])
def test_detection(weights):
    (targets, outputs), names = detection_case(), ("class_weight", "box_weight", "giou_weight", "no_object_weight")
    loss = DetectionLoss.from_config(DetectionLoss(*weights).get_config())
    assert [getattr(loss, name) for name in names] == [*weights]
    expected = detection(targets["boxes"], outputs["logits"], outputs["boxes"], *weights)
    np.testing.assert_allclose(loss(targets, outputs), expected, rtol=1e-6)


@for_each("weights", [(2.0, 5.0, 5.0, 0.1), (1.0, 2.0, 0.5, 0.3)])
def test_masks(weights):
    targets, outputs = mask_case()
    loss = MaskLoss.from_config(MaskLoss(*weights).get_config())
    np.testing.assert_allclose(loss(targets, outputs), mask_loss(targets["masks"], outputs, *weights), rtol=1e-6)


@for_each("size", [(6, 8), (12, 16), (5, 9)])
def test_segmentation(size):
    labels = RNG.integers(0, 4, (BATCH, *size))
    labels[labels == 3], labels[2] = 255, 255
    logits = RNG.normal(size=(BATCH, 6, 8, 3)).astype("float32")
    loss = SegmentationLoss.from_config(SegmentationLoss(0.5).get_config())
    resized, known = np.asarray(keras.ops.image.resize(logits, size, "bilinear"), "float64"), labels != 255
    entropies = -np.take_along_axis(log_softmax(resized, -1), np.where(known, labels, 0)[..., None], -1)[..., 0]
    expected = entropies[known].mean()
    np.testing.assert_allclose(loss(labels, {"logits": logits}), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(labels, {"logits": logits, "auxiliary_logits": logits}), 1.5 * expected, rtol=1e-5)
    assert float(loss(np.full_like(labels, 255), {"logits": logits})) == 0


@for_each(
    "loss, case, of",
    [
        (DetectionLoss(), detection_case, lambda targets, outputs, x: {**outputs, "boxes": x}),
        (DetectionLoss(), detection_case, lambda targets, outputs, x: {**outputs, "logits": x}),
        (MaskLoss(), lambda: mask_case(1), lambda targets, outputs, x: {**outputs, "mask_logits": [x]}),
        (MaskLoss(), lambda: mask_case(1), lambda targets, outputs, x: {**outputs, "class_logits": [x]}),
    ],
)
def test_gradients(loss, case, of):
    targets, outputs = case()
    changed = next(x for x in outputs.values() if of(targets, outputs, 0) is not None and _is_changed(of, outputs, x))
    changed = np.asarray(changed[0] if isinstance(changed, list) else changed)
    direction = RNG.normal(size=changed.shape).astype("float32")
    step = 1e-4
    ends = [float(loss(targets, of(targets, outputs, changed + side * step * direction))) for side in (1, -1)]
    gradient = _gradient(lambda x: loss(targets, of(targets, outputs, x)), changed)
    np.testing.assert_allclose((gradient * direction).sum(), (ends[0] - ends[1]) / (2 * step), rtol=3e-2, atol=5e-3)


def _is_changed(of, outputs, value):
    after = of(None, outputs, 0)
    return any(after[name] is not outputs[name] and outputs[name] is value for name in outputs)


def _gradient(function, x):
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(x))
    import tensorflow as tf

    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return tape.gradient(value, x).numpy()


@for_each(
    "make, message",
    [
        (lambda: DetectionLoss(box_weight=-1.0), "box_weight must be a? ?number of at least 0"),
        (lambda: MaskLoss(dice_weight=-1.0), "dice_weight must be a? ?number of at least 0"),
        (lambda: SegmentationLoss(ignore=-2), "ignore must be an integer"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
