"""VtabScore: the mean accuracies over the 19 VTAB tasks, as reported in papers."""

import dataclasses
import numbers

from keras_vit.data.vtab import VTAB_TASKS


@dataclasses.dataclass(frozen=True)
class VtabScore:
    """Hold the accuracies on the VTAB tasks, and their means.

    Source: arXiv 1910.04867; Table 9 and Tables 2 and 5 of arXiv 2010.11929 report the same means.

    Attributes:
        accuracies: {task: top-1 accuracy in [0, 1]} for each of `keras_vit.data.list_vtab_tasks()`.

    Raises:
        ValueError: if a task is missing or unknown, or an accuracy is not a number in [0, 1].
    """

    accuracies: dict[str, float]

    def __post_init__(self):
        missing = [name for name in VTAB_TASKS if name not in self.accuracies]
        unknown = [str(name) for name in self.accuracies if name not in VTAB_TASKS]
        if missing or unknown:
            raise ValueError(f"accuracies must have the VTAB tasks; missing: {missing}, unknown: {unknown}")
        for name, value in self.accuracies.items():
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0.0 <= value <= 1.0:
                raise ValueError(f"accuracies must be numbers in [0, 1], not percent; got {value!r} for {name}")

    @property
    def groups(self) -> dict[str, float]:
        """Return the mean over the tasks of each group.

        The groups are `"natural"`, `"specialized"` and `"structured"`.
        """
        groups: dict[str, list[float]] = {}
        for name, task in VTAB_TASKS.items():
            groups.setdefault(task.group, []).append(self.accuracies[name])
        return {group: sum(values) / len(values) for group, values in groups.items()}

    @property
    def mean(self) -> float:
        """Return the VTAB score: the mean over the 19 tasks with equal weights."""
        return sum(self.accuracies.values()) / len(self.accuracies)

    def __str__(self):
        groups = ", ".join(f"{group} {100 * mean:.2f} %" for group, mean in self.groups.items())
        return f"VTAB {100 * self.mean:.2f} % ({groups})"
