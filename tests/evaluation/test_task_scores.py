"""Scores of maps and keypoints: against loops over pixels and segments, on random and adversarial answers."""

import collections

import numpy as np
import pytest
from faults import assert_no_faults

from keras_vit.evaluation.task_scores import (
    aligned_depth,
    depth_counts,
    depth_scores,
    keypoint_counts,
    keypoint_scores,
    pixel_counts,
    pixel_scores,
    segment_counts,
    segment_scores,
)

RNG = np.random.default_rng(0)


def known(column):
    """{class: score} without NaN."""
    return {n: x for n, x in enumerate(column.tolist()) if not np.isnan(x)}


def iou_of_definition(pairs, classes):
    """{class: IoU}, by sets of pixels."""
    found = {}
    for n in range(classes):
        true = {(i, x) for i, (truth, _) in enumerate(pairs) for x in np.flatnonzero(truth == n)}
        void = {(i, x) for i, (truth, _) in enumerate(pairs) for x in np.flatnonzero(truth == 255)}
        answered = {(i, x) for i, (_, answer) in enumerate(pairs) for x in np.flatnonzero(answer == n)} - void
        if true | answered:
            found[n] = len(true & answered) / len(true | answered)
    return found


@pytest.mark.parametrize("missing", [(), (1,), (0, 3)])
def test_iou_of_random_maps(missing):
    pairs = []
    for _ in range(4):
        truth, answer = RNG.integers(0, 5, (2, 9, 7))
        truth[RNG.random(truth.shape) < 0.2] = 255
        answer[RNG.random(answer.shape) < 0.1] = -1
        for n in missing:  # in no truth; the last is not predicted either
            truth[truth == n] = 2
        answer[answer == 3] = 4 if 3 in missing else 3
        pairs.append((truth, answer))
    values, columns = pixel_scores(sum(pixel_counts(truth.astype("int32"), answer, 5) for truth, answer in pairs))
    expected = iou_of_definition(pairs, 5)
    assert known(columns["IoU"]) == pytest.approx(expected)
    assert (3 in expected) == (3 not in missing)
    truth, answer = (np.concatenate([pair[n].ravel() for pair in pairs]) for n in (0, 1))
    has_class = truth != 255
    accuracies = [(answer[truth == n] == n).mean() for n in range(5) if (truth == n).any()]
    assert values == pytest.approx(
        {
            "mIoU": np.mean([*expected.values()]),
            "pixel_accuracy": (truth == answer)[has_class].mean(),
            "mean_accuracy": np.mean(accuracies),
        }
    )


def test_void_and_predictions_without_class():
    counts = pixel_counts(np.array([[0, 0, 1, 255]]), np.array([[0, -1, -1, 1]]), 3)
    values, columns = pixel_scores(counts)
    assert values == {"mIoU": 0.25, "pixel_accuracy": 1 / 3, "mean_accuracy": 0.25}
    assert known(columns["IoU"]) == {0: 0.5, 1: 0.0}  # the last class does not occur


def quality_of_definition(images, classes):
    """{class: (PQ, SQ, RQ)}, pair by pair, with the masks of the segments."""
    ious, wrong, missed = collections.defaultdict(list), collections.Counter(), collections.Counter()
    for truth, labels, answer, answered, crowd in images:
        void, matched, taken = truth == -1, set(), set()
        for a, label in enumerate(labels):
            for b, other in enumerate(answered):
                mine, its = truth == a, (answer == b) & ~void
                if label == other and not crowd[a] and (mine & its).sum() > 0.5 * (mine | its).sum() > 0:
                    ious[label].append((mine & its).sum() / (mine | its).sum())
                    matched.add(a)
                    taken.add(b)
        for a, label in enumerate(labels):
            missed[label] += a not in matched and not crowd[a]
        for b, other in enumerate(answered):
            its, ignored = answer == b, void.copy()
            for a, label in enumerate(labels):
                if crowd[a] and label == other:
                    ignored |= truth == a
            wrong[other] += its.any() and b not in taken and (its & ignored).sum() <= 0.5 * its.sum()
    found = {}
    for n in range(classes):
        tp, errors = len(ious[n]), wrong[n] / 2 + missed[n] / 2
        if tp + errors:
            sq, rq = np.mean(ious[n] or [0]), tp / (tp + errors)
            found[n] = (sum(ious[n]) / (tp + errors), sq, rq)
            assert np.isclose(found[n][0], sq * rq)
    return found


def random_segments(rng, is_near):
    """Blocks of a map with some classes; the answer is the truth with some pixels and labels changed, or its own."""
    truth = np.kron(rng.permutation(9).reshape(3, 3) - 1, np.ones((4, 5), int))  # -1 is one block of void
    answer = truth.copy() if is_near else np.kron(rng.permutation(9).reshape(3, 3) - 1, np.ones((4, 5), int))
    noise = rng.random(truth.shape) < 0.25
    answer[noise] = rng.integers(-1, 8, noise.sum())
    labels, answered = rng.integers(0, 4, (2, 8))
    if is_near:
        answered = np.where(rng.random(8) < 0.8, labels, answered)
    return truth, labels, answer, answered, rng.random(8) < 0.25


def counted(image, classes):
    truth, labels, answer, answered, crowd = image
    labels, answered = np.array(labels, int), np.array(answered, int)
    return segment_counts(truth, labels, np.array(crowd, bool), answer, answered, classes)


def check_quality(images, classes=6, stuff=(2, 5)):
    values, columns = segment_scores(sum(counted(image, classes) for image in images), stuff)
    expected = quality_of_definition(images, classes)
    for place, name in enumerate(("PQ", "SQ", "RQ")):
        assert known(columns[name]) == pytest.approx({n: x[place] for n, x in expected.items()})
        for suffix, group in (("", range(classes)), ("_stuff", stuff), ("_things", {*range(classes)} - {*stuff})):
            means = [expected[n][place] for n in group if n in expected]
            assert values.get(name + suffix) == (pytest.approx(np.mean(means)) if means else None)
    return values


@pytest.mark.parametrize("is_near", [True, False])
def test_quality_of_random_segments(is_near):
    images = [random_segments(np.random.default_rng(seed), is_near) for seed in range(12)]
    values = check_quality(images)
    assert (values["PQ"] > 0.2) == is_near, values


def test_quality_of_adversarial_segments():
    nothing, one = np.full((4, 6), -1), np.zeros((4, 6), int)
    half = np.where(np.arange(6) < 3, 0, -1) + nothing * 0
    two = np.where(np.arange(6) < 3, 0, 1) + one
    yes, no = [True], [False]
    cases = {
        "no answer": [(one, [0], nothing, [], no)],
        "no truth, all void": [(nothing, [], one, [0], []), (one, [1], one, [1], no)],
        "exactly half is no match": [(one, [0], half, [0], no)],
        "half of an answer in void is no false positive only above half": [(half, [0], one, [1], no)],
        "void is not in the union": [(half, [0], one, [0], no)],
        "crowd of the class": [(one, [0], half, [0], yes), (one, [3], one, [3], no)],
        "crowd of another class": [(one, [0], half, [1], yes)],
        "two crowds of a class together": [(two, [0, 0], one, [0], [True, True]), (one, [3], one, [3], no)],
        "a segment without pixels": [(one, [0, 2], one, [0, 0], [False, False])],
        "duplicates": [(one, [0], two, [0, 0], no)],
        "one class is never found": [(two, [0, 5], two, [0, 0], [False, False])],
    }

    def check(images):
        check_quality(images)

    assert_no_faults(check, cases)
    values, _ = segment_scores(counted((two, [0, 1], two, [0, 1], no * 2), 2), ())
    assert values == dict.fromkeys(("PQ", "SQ", "RQ", "PQ_things", "SQ_things", "RQ_things"), 1.0)


def test_depth_is_averaged_over_images():
    truths, answers = RNG.uniform(0.5, 9, (2, 3, 8, 6)), RNG.uniform(-0.5, 12, (3, 8, 6))
    truth, rows = truths[0], []
    total = sum(depth_counts(true.ravel(), found.ravel(), 10) for true, found in zip(truth, answers, strict=True))
    for true, found in zip(truth, answers, strict=True):
        pairs = [(t, min(max(p, 1e-3), 10)) for t, p in zip(true.ravel(), found.ravel(), strict=True)]
        ratios = [max(t / p, p / t) for t, p in pairs]
        shares = [np.mean([ratio < limit for ratio in ratios]) for limit in (1.25, 1.5625, 1.953125)]
        rows.append(
            [
                np.mean([abs(t - p) / t for t, p in pairs]),
                np.sqrt(np.mean([(t - p) ** 2 for t, p in pairs])),
                *shares,
            ]
        )
    names = ("abs_rel", "rmse", "delta1", "delta2", "delta3")
    assert depth_scores(total)[0] == pytest.approx(dict(zip(names, np.mean(rows, 0), strict=True)))


def test_disparity_is_fitted_by_least_squares():
    truth, disparity = RNG.uniform(1, 8, (2, 6, 5))
    known = RNG.random((6, 5)) < 0.7
    shift, scale = np.polynomial.Polynomial.fit(disparity[known], 1 / truth[known], 1).convert().coef
    expected = 1 / np.maximum(scale * disparity + shift, 1 / 8)
    np.testing.assert_allclose(aligned_depth(disparity, truth, known, 8.0), expected)
    np.testing.assert_allclose(aligned_depth(7 - 3 / truth, truth, known, 8.0), truth)  # any scale and shift
    flat = aligned_depth(np.full((6, 5), 3.0), truth, known, 8.0)
    np.testing.assert_allclose(flat, 1 / np.mean(1 / truth[known]))
    far = aligned_depth(np.array([1.0, 2.0, -9.0]), np.array([1.0, 0.5, 1.0]), np.array([True, True, False]), 80.0)
    np.testing.assert_allclose(far, [1, 0.5, 80])  # a negative disparity has the largest depth


def test_keypoints_near_the_truth():
    truth = np.array([[[10, 10, 2], [20, 10, 1], [0, 0, 0]], [[5, 5, 2], [9, 9, 2], [7, 7, 1]]], float)
    boxes = np.array([[0, 0, 50, 20], [0, 0, 10, 10]], float)
    found = truth[..., :2] + [[[10, 0], [8, 7], [0, 0]], [[0, 2], [0, 2.1], [99, 0]]]
    counts = keypoint_counts(truth, boxes, found)
    values, columns = keypoint_scores(counts + keypoint_counts(truth[:0], boxes[:0], found[:0]))
    assert values == {"pck": 2 / 5} and columns["pck"].tolist() == [1, 0, 0]
