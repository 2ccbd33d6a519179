"""`python -m benchmarks fidelity`: what its figures are, and that keras_vit has the authors' outputs at every size."""

import numpy as np
import pytest

from benchmarks import __main__ as program
from benchmarks import fidelity


def test_a_difference_is_relative_to_the_largest_value():
    expected = np.array([1.0, -4.0])
    assert fidelity.difference(expected + [0.0, 0.02], expected) == "5e-03"
    assert fidelity.difference(None, expected) == "-"
    with pytest.raises(ValueError, match="shape"):
        fidelity.difference(np.zeros((2, 2)), expected)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(fidelity, "is_installed", lambda name: name != "timm")
    with pytest.raises(SystemExit, match="missing: timm$"):
        list(fidelity.run(program.Options()))


@pytest.mark.slow
def test_keras_vit_has_the_authors_outputs():
    for name in fidelity.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the authors' outputs, is not installed")
    [table] = fidelity.run(program.Options(peers=False))
    assert {family for family, *_ in table.rows} == {family.title for family in fidelity.FAMILIES}
    assert {row[:3]: row[3] for row in table.rows if float(row[3]) > 5e-6} == {}
