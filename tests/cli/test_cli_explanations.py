"""`keras-vit explain`: the sheet is that of the package, for models with and without a class token."""

import os
import pathlib
import sys

import numpy as np
import pytest
from command_line import SAVED, TI16, error_of, run
from families import FAMILIES
from faults import for_each
from PIL import Image
from rendered import find
from slow_rows import slow_after

import keras_vit
from keras_vit import analysis


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_after(1, ["Swin", "plain", "axial"]))
def test_the_sheet_shows_what_the_analyses_give(here, capsys, name):
    model = FAMILIES[name].build()
    model.save("model_of_32.keras")
    words = ["explain", "cat.jpg", "--model", "model_of_32.keras", "--heads", "1", "-o", "cat.png"]
    code, out, err = run(capsys, *words)
    assert (code, out) == (0, "cat.png\n"), err
    pixels = np.asarray(Image.open("cat.png").convert("RGB"))
    inputs = keras_vit.preprocess("cat.jpg", model.preprocessing)
    image = analysis.overlay(model.preprocessing.to_images(inputs)[0], np.ones((1, 1))).repeat(7, 0).repeat(7, 1)
    heads = analysis.head_maps(model, inputs)[0]
    strongest = heads[analysis.head_strength(heads).argmax()]
    top, left = find(pixels, image)
    rollout = analysis.attention_rollout(model, inputs)[0]
    assert find(pixels, analysis.overlay(image, rollout)) == (top, left + 232)
    assert find(pixels, analysis.heat_map(image, rollout)) == (top, left + 2 * 232)
    assert find(pixels, analysis.heat_map(image, strongest)) == (top + 224 + 28, left)


@pytest.mark.slow
def test_layer_and_another_format(here, capsys):
    words = ["explain", "cat.jpg", *SAVED, "--layer", "block_00", "--top", "2", "-o", "cat.pdf"]
    assert run(capsys, *words)[0] == 0
    with open("cat.pdf", "rb") as file:
        assert file.read(5) == b"%PDF-"


@pytest.mark.slow
def test_the_title_names_the_file_of_the_model(here, capsys):
    """An SVG has every text as a comment, too."""
    (here / "pets").mkdir()
    (here / "model.keras").rename(here / "pets" / "best.keras")
    for given in ("pets/best.keras", here / "pets" / "best.keras"):
        assert run(capsys, "explain", "cat.jpg", "--model", given, "-o", "cat.svg")[0] == 0
        assert f"<!-- small ({os.path.join('pets', 'best.keras')}): cat.jpg -->" in pathlib.Path("cat.svg").read_text()
    run(capsys, "explain", "cat.jpg", *TI16, "--image-size", "32", "-o", "cat.svg")
    assert "<!-- ViT-Ti_16: cat.jpg -->" in pathlib.Path("cat.svg").read_text()


@for_each(
    ("words", "message"),
    [
        (["cat.jpg", *SAVED, "-o", "cat.gif"], "the ending of --output must be one of '.png', '.jpg', '.pdf', '.svg'"),
        (["cat.jpg", *SAVED, "-o", "cat.png", "--layer", "block_03"], "layers must be one of 'block_00'"),
        (["cat.jpg", *SAVED, "-o", "cat.png", "--layer", "-3"], "layers must be names or numbers of the 1 blocks"),
        (["absent.jpg", *SAVED, "-o", "cat.png"], "absent.jpg"),
        (["cat.jpg", *SAVED, "-o", "absent/cat.png"], "--output must be in a folder that exists; got 'absent/cat.png'"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_file(here, capsys, words, message):
    assert message in error_of(run(capsys, "explain", *words))
    assert not list(here.glob("cat.p*")) and not list(here.glob("*.gif"))


def test_a_missing_matplotlib_is_told_before_anything_is_computed(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = "plots need matplotlib: pip install matplotlib\n"
    assert message in run(capsys, "explain", "cat.jpg", "--model", "not_read.keras", "-o", "cat.png")[2]
    words = ["--folder", "not_read", "--model", "not_read.keras", "--plot", "shots.png"]
    assert message in run(capsys, "probe", *words)[2]
