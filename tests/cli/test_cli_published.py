"""`keras-vit evaluate --published` and `--all`: accuracies beside those that timm publishes."""

import csv
import json

import numpy as np
import pytest
from command_line import run
from drawn import draw

import keras_vit
from keras_vit.cli import published

NAMES = [name for name in published.PUBLISHED if name.startswith("deit_tiny")]


@pytest.fixture
def opened(workplace, tmp_path, monkeypatch):
    """The addresses that `load` got, in a folder with images of two classes; it opens a small model of these."""
    monkeypatch.chdir(tmp_path)
    model, found = workplace.small_model(), []
    model.labels = ["a", "b", "c"]
    for index, name in enumerate("aabb"):
        path = tmp_path / "images" / name / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(index).save(path)

    def load(address, **changes):
        found.append(address)
        if "distilled" in address and len(found) < 3:
            raise OSError("no connection")
        return model

    monkeypatch.setattr(keras_vit, "load", load)
    return found


def rows():
    with open("table.csv", encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def test_the_table_of_all_files_goes_on_where_it_ended(opened, capsys):
    command = ["evaluate", "--folder", "images", "--all", "DeiT_Tiny*", "--table", "table.csv", "--json"]
    assert run(capsys, *command)[0] == 1
    assert opened == [f"hf://timm/{name}" for name in NAMES] and len(NAMES) == 2
    first = rows()
    assert [row["error"] for row in first.values()] == ["no connection", ""]
    measured = first["deit_tiny_patch16_224.fb_in1k"]
    assert (measured["published_top1"], measured["published_top5"], measured["images"]) == ("72.19", "91.1", "4")
    assert float(measured["top1"]) in (0.0, 25.0, 50.0, 75.0, 100.0)
    assert run(capsys, *command)[0] == 0
    assert opened[2:] == ["hf://timm/deit_tiny_distilled_patch16_224.fb_in1k"]
    assert rows()["deit_tiny_patch16_224.fb_in1k"] == measured
    assert [row["error"] for row in rows().values()] == ["", ""]
    assert run(capsys, *command)[0] == 0
    assert len(opened) == 3


def test_the_published_accuracy_is_printed(opened, capsys):
    _, said, _ = run(capsys, "evaluate", "--folder", "images", "--published", NAMES[1])
    assert said.splitlines()[-1] == (
        "published by timm: top-1 accuracy 72.19 %, top-5 91.10 % "
        "(deit_tiny_patch16_224.fb_in1k at 224 pixels, all 50,000 images)"
    )
    _, said, _ = run(capsys, "evaluate", "--folder", "images", "--published", NAMES[1], "--json")
    assert json.loads(said)["published"]["top1"] == 72.19
    assert published.compared(published.PUBLISHED[NAMES[1]], with_real=True).startswith(
        "published by timm: ReaL top-1 accuracy 80."
    )


def test_a_folder_is_known_by_its_config(workplace, tmp_path):
    keras_vit.save_weights(workplace.small_model(), tmp_path / "model.safetensors", layout="timm")
    stated = {"architecture": "test_vit", "pretrained_cfg": {"tag": "r160_in1k"}}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert published.published(str(tmp_path)) == published.PUBLISHED["test_vit.r160_in1k"]
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_vit"}))
    assert published.published(str(tmp_path)) is None
    assert published.compared(None, with_real=False) == "timm publishes no accuracy of this file"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--all", "deit_*"), "--all requires --table"),
        (("--all", "dei_tiny_patch16_224.fb_in1k", "--table", "t.csv"), "did you mean 'deit_tiny_patch16_224.fb_in1k'"),
        (("--all", "deit_*", "--table", "t.txt"), "--table must"),
        (("--all", "deit_*", "--table", "bad.csv"), "must have the columns file, images"),
        (("--all", "deit_*", "--table", "t.csv", "--report"), "--report cannot be used with --all"),
        (("--all", "deit_*", "--table", "t.csv", "--image-size", "32"), "--image-size requires --model or --published"),
        (("--model", "ViT-Ti_16", "--table", "t.csv"), "--table requires --all"),
        ((), "one of the arguments --model --published --all is required"),
    ],
)
def test_mistakes(opened, capsys, words, message):
    with open("bad.csv", "w", encoding="utf-8") as file:
        file.write("a,b\n1,2\n")
    code, _, said = run(capsys, "evaluate", "--folder", "images", *words)
    assert code == 2 and message in said, said
    assert not opened


def test_the_table_states_percent_of_known_files():
    for row in published.PUBLISHED.values():
        assert 40 < row["top1"] < row["top5"] < 100 and row["top1"] < row.get("real", 99), row
    values = np.array([[row["top1"], row["top5"]] for row in published.PUBLISHED.values()])
    assert values.shape == (189, 2)
