"""`python -m benchmarks transformers_files`: small models of transformers are saved, loaded and compared."""

import pytest

from benchmarks import __main__ as program
from benchmarks import transformers_files


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(transformers_files, "is_installed", lambda name: name != "transformers")
    with pytest.raises(SystemExit, match="missing: transformers$"):
        list(transformers_files.run(program.Options()))


@pytest.mark.slow
def test_keras_vit_computes_what_transformers_computes():
    for name in transformers_files.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the expected outputs, is not installed")
    [table] = transformers_files.run(program.Options())
    assert len(table.rows) > 25
    assert [row for row in table.rows if not row[2][0].isdigit() or float(row[2]) > 1e-5] == []
