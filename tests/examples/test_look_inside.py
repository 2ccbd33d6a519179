"""examples/look_inside.py writes its figures, and says what they show."""

import os
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest
from PIL import Image

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "look_inside.py"
FIGURES = ("attention", "filters", "positions", "distance", "explanation")


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out


def check(folder, out):
    for name in FIGURES:
        with Image.open(folder / f"{name}.png") as figure:
            assert np.asarray(figure.convert("L")).std() > 10 and max(figure.size) < 1000
        assert os.path.getsize(folder / f"{name}.png") < 700_000
    numbers = [float(number) for number in re.findall(r"([\d.]+) (?:pixels|in the last|%)", out)]
    assert len(numbers) == 5 and min(numbers) > 0
    return numbers


@pytest.mark.usefixtures("eagerly")
def test_digits(tmp_path, monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--tiny", "--output", tmp_path)
    *_, alike = check(tmp_path, out)
    assert alike == 100


@pytest.mark.slow
def test_a_real_model_on_real_pictures(real_data, tmp_path, monkeypatch, capsys):
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    pictures = sorted((real_data / "pictures").iterdir())
    out = run(monkeypatch, capsys, "--model", "ViT-Ti_16", "--weights", weights, "--output", tmp_path, *pictures)
    near, far, *_ = check(tmp_path, out)
    assert far > 2 * near


@pytest.mark.parametrize("arguments", [["cat.jpg"], ["--model", "ViT-Ti_16"], ["--weights", "x.npz"]])
def test_arguments_that_go_together(monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, *arguments)
    assert "--model, --weights and pictures go together" in capsys.readouterr().err
