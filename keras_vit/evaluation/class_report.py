"""Accuracy and confusions per class, accumulated over batches."""

import collections
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class ClassReport:
    """Accuracy per class.

    Attributes:
        names: names of the data's classes, in the order of its labels.
        labels: the model's names of these classes; None if it has none or they were not matched.
        counts: int64 (classes,), images of each class.
        correct: int64 (classes,), correctly classified images of each class.
        confusions: `(index of the class, the model's name of the wrong class, images)` for each wrong class that was
            predicted, the most frequent first.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...] | None
    counts: np.ndarray
    correct: np.ndarray
    confusions: tuple[tuple[int, str, int], ...]

    @property
    def accuracies(self) -> np.ndarray:
        """Accuracy of each class, in [0, 1], float64 (classes,); NaN without images."""
        return np.divide(self.correct, self.counts, out=np.full(len(self.counts), np.nan), where=self.counts > 0)

    @property
    def mean(self) -> float:
        """Mean per-class accuracy, in [0, 1], over the classes that have images."""
        return float(np.nanmean(self.accuracies))

    @property
    def worst(self) -> list[int]:
        """Indices of the classes that have images, worst accuracy first.

        Of equal classes, the one with most images comes first.
        """
        order = np.lexsort((-self.counts, self.accuracies))
        return [int(n) for n in order if self.counts[n]]

    def table(self, classes: int) -> str:
        """Return a table of the worst classes.

        Each row also shows the most frequent wrong prediction.

        Args:
            classes: number of rows; all classes with images if there are fewer.
        """
        accuracies = self.accuracies
        most_frequent: dict[int, str] = {}
        for n, answer, count in self.confusions:
            most_frequent.setdefault(n, f"{answer} ({count})")
        rows = [
            (
                self._title(n),
                self.correct[n],
                self.counts[n],
                f"{100 * accuracies[n]:.1f} %",
                most_frequent.get(n, ""),
            )
            for n in self.worst[:classes]
        ]
        return _aligned(("class", "right", "images", "accuracy", "most often taken for"), rows, left=(0, 4))

    def _title(self, n):
        name, label = self.names[n], None if self.labels is None else self.labels[n]
        return name if label is None or label.casefold() == name.casefold() else f"{name} ({label})"


class ClassTally:
    """Accumulate counts per class over batches; `report` returns the `ClassReport`.

    Args:
        names, labels: as in `ClassReport`.
        answers: names of the model's logits.
    """

    def __init__(self, names, labels, answers):
        self._names, self._labels, self._answers = tuple(names), labels, answers
        self._counts, self._correct = (np.zeros(len(self._names), np.int64) for _ in range(2))
        self._confusions = collections.Counter()

    @property
    def size(self):
        """Number of classes."""
        return len(self._names)

    def add(self, labels, best, is_right):
        """Add a batch: labels (batch,), predicted logits (batch,) and whether these are correct, bool (batch,)."""
        self._counts += np.bincount(labels, minlength=len(self._names))
        self._correct += np.bincount(labels[is_right], minlength=len(self._names))
        self._confusions.update(zip(labels[~is_right].tolist(), best[~is_right].tolist(), strict=True))

    def report(self):
        ordered = sorted(self._confusions.items(), key=lambda entry: (-entry[1], entry[0]))
        confusions = tuple((label, self._answers[best], count) for (label, best), count in ordered)
        return ClassReport(self._names, self._labels, self._counts, self._correct, confusions)


def _aligned(head, rows, left):
    """Return the text of a table; the columns in `left` are left-aligned, the others right-aligned."""
    rows = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = (
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
