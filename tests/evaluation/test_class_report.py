"""The report by classes: counts against scikit-learn's confusion matrix, and the table."""

import numpy as np
import pytest
import sklearn.metrics

from keras_vit.evaluation.accuracy import ClassReport, class_report

NAMES = ("ant", "bee", "cat", "dog", "elk")
RNG = np.random.default_rng(0)
LABELS = RNG.choice(4, 300, p=[0.4, 0.3, 0.2, 0.1])  # no elk
BEST = np.where(RNG.random(300) < 0.6, LABELS, RNG.integers(0, 5, 300))


FOUND = class_report(NAMES, None, NAMES, LABELS, BEST, LABELS == BEST)


def test_counts_are_those_of_the_confusion_matrix():
    matrix = sklearn.metrics.confusion_matrix(LABELS, BEST, labels=range(5))
    assert FOUND.counts.tolist() == matrix.sum(axis=1).tolist()
    assert FOUND.correct.tolist() == matrix.diagonal().tolist()
    expected = {(i, NAMES[j], matrix[i, j]) for i in range(5) for j in range(5) if i != j and matrix[i, j]}
    assert set(FOUND.confusions) == expected
    counts = [count for _, _, count in FOUND.confusions]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_mean_is_the_balanced_accuracy():
    recalls = sklearn.metrics.recall_score(LABELS, BEST, labels=range(4), average=None)
    np.testing.assert_allclose(FOUND.accuracies[:4], recalls, rtol=1e-12)
    assert np.isnan(FOUND.accuracies[4])
    assert FOUND.mean == pytest.approx(recalls.mean(), rel=1e-12)


def test_table_begins_with_the_worst_class():
    report = ClassReport(
        NAMES,
        ("Ant", "honey bee", "cat", "dog", "elk"),
        np.array([4, 10, 2, 4, 0]),
        np.array([2, 1, 1, 4, 0]),
        ((1, "wasp", 6), (1, "fly", 3), (0, "honey bee", 2), (2, "dog", 1)),
    )
    assert report.worst == [1, 0, 2, 3]  # of equals the larger; the empty class is none
    assert report.table(3).splitlines() == [
        "class            correct  images  accuracy  most often predicted as",
        "bee (honey bee)        1      10    10.0 %  wasp (6)",
        "ant                    2       4    50.0 %  honey bee (2)",
        "cat                    1       2    50.0 %  dog (1)",
    ]
    assert report.table(9).splitlines()[4] == "dog                    4       4   100.0 %"
