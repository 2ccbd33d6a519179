"""`python -m benchmarks task_models`: published task models are opened with the shapes that transformers gives them."""

import pytest

from benchmarks import __main__ as program
from benchmarks import task_models


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(task_models, "is_installed", lambda name: name != "torch")
    with pytest.raises(SystemExit, match="missing: torch$"):
        list(task_models.run(program.Options()))


@pytest.mark.slow
def test_the_models_of_transformers_have_the_parameters_of_the_table_and_our_outputs():
    for name in task_models.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the expected numbers, is not installed")
    table, outputs = task_models.run(program.Options())
    assert len(table.rows) > 50
    assert [row for row in table.rows if row[1] != row[2]] == []
    # transformers computes the logits of OWL's corners, log(1e-4), in float32; SAM has the most tokens
    assert [row for row in outputs.rows if float(row[2]) > 2e-4] == []
    assert {row[0] for row in outputs.rows} == set(task_models.WHOLE)
