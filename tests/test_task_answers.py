"""`python -m benchmarks task_answers`: answers for photographs, compared with transformers."""

import pytest

from benchmarks import __main__ as program
from benchmarks import task_answers

# shares of the pixels, pixels of the photograph, and others; one byte of a crop for ViTPose may differ
LIMITS = {"depth": 1e-4, "segments": 1e-4, "masks": 1e-4, "boxes": 0.01, "scores": 0.01, "keypoints": 0.5}


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(task_answers, "is_installed", lambda name: name != "scipy")
    with pytest.raises(SystemExit, match="missing: scipy$"):
        list(task_answers.run(program.Options()))
    monkeypatch.setattr(task_answers, "is_installed", lambda name: True)
    with pytest.raises(SystemExit, match="needs --real-data"):
        list(task_answers.run(program.Options()))


@pytest.mark.slow
def test_answers_are_those_of_transformers(real_data):
    for name in task_answers.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the expected answers, is not installed")
    [table] = task_answers.run(program.Options(real_data=real_data))
    assert {model for model, *_ in table.rows} == set(task_answers.COMPARED)
    assert [row for row in table.rows if float(row[2]) > LIMITS[row[1].split()[-1]]] == []
