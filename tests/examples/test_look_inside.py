"""examples/look_inside.py writes its figures, and says what they show."""

import os
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest
from families import FAMILIES
from PIL import Image

import keras_vit

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "look_inside.py"
FIGURES = ("attention", "filters", "positions", "distance", "explanation")


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out


def check(folder, out, names=FIGURES, most_bytes=700_000):
    """Every figure is there, and no other; returns the numbers that are told of each."""
    assert {path.stem for path in folder.iterdir()} == set(names)
    for name in names:
        with Image.open(folder / f"{name}.png") as figure:
            assert np.asarray(figure.convert("L")).std() > 10 and max(figure.size) < 1000
        assert os.path.getsize(folder / f"{name}.png") < most_bytes
    told = dict(re.findall(r"^(\w+): (.*)$", out, re.MULTILINE))
    assert set(told) == {*names, "saved"}
    return {name: [float(number) for number in re.findall(r"([\d.]+) (?:pixels|%)", told[name])] for name in names}


@pytest.mark.docs
@pytest.mark.usefixtures("eagerly")
def test_digits(tmp_path, monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--tiny", "--output", tmp_path)
    numbers = check(tmp_path, out)
    assert numbers["positions"] == [100]
    assert [len(numbers[name]) for name in ("attention", "filters", "distance")] == [1, 2, 2]
    assert min(sum(numbers.values(), [])) > 0


@pytest.mark.docs
@pytest.mark.parametrize(
    ("name", "missing"),
    [("Swin", {"positions"}), ("BiT", set(FIGURES) - {"filters"})],
)
def test_what_a_model_lacks_is_told(here, monkeypatch, capsys, name, missing):
    monkeypatch.setattr(keras_vit, "create_model", lambda *_, **__: FAMILIES[name].build())
    (here / "inside").mkdir()
    out = run(monkeypatch, capsys, "--model", "any", "--weights", "any", "--output", "inside", "cat.jpg")
    check(here / "inside", re.sub(r"^no .*\n", "", out, flags=re.MULTILINE), set(FIGURES) - missing)
    assert set(re.findall(r"^no (\w+): model must ", out, re.MULTILINE)) == missing


@pytest.mark.slow
def test_a_real_model_on_real_images(real_data, tmp_path, monkeypatch, capsys):
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    images = sorted((real_data / "pictures").iterdir())
    out = run(monkeypatch, capsys, "--model", "ViT-Ti_16", "--weights", weights, "--output", tmp_path, *images)
    near, far = check(tmp_path, out, most_bytes=1_200_000)["distance"]  # photos compress less than digits
    assert far > 2 * near


@pytest.mark.parametrize("arguments", [["cat.jpg"], ["--model", "ViT-Ti_16"], ["--weights", "x.npz"]])
def test_arguments_that_go_together(monkeypatch, capsys, arguments):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, *arguments)
    assert "--model, --weights and images go together" in capsys.readouterr().err
