"""`python -m benchmarks task_models`: published task models are opened with the shapes that transformers gives them."""

import pytest

from benchmarks import __main__ as program
from benchmarks import task_models


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(task_models, "is_installed", lambda name: name != "torch")
    with pytest.raises(SystemExit, match="missing: torch$"):
        list(task_models.run(program.Options()))


@pytest.mark.slow
def test_the_files_of_transformers_have_the_parameters_of_the_table():
    for name in task_models.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the expected numbers, is not installed")
    [table] = task_models.run(program.Options())
    assert len(table.rows) > 50
    assert [row for row in table.rows if row[1] != row[2]] == []
