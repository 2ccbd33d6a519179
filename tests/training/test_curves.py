"""The figure of a run: drawn where matplotlib is installed, and left out where it is not."""

import sys

import pytest

from keras_vit.training.progress import draw_curves


def test_curves_need_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw_curves([{"step": 1, "loss": 2.0}], tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []


def test_curves(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [{"step": step, "loss": 1 / step, "accuracy": 0.5, "learning_rate": 0.1} for step in (1, 2, 3)]
    assert draw_curves(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
