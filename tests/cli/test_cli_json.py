"""`--json` of every command: its values are those of the package, and its keys those of docs/guides/command_line.md."""

import json
import pathlib
import types

import keras
import numpy as np
import pytest
from command_line import SAVED, TI16, documented_keys, run

import keras_vit
from keras_vit.cli import VERBS
from keras_vit.evaluation import Accuracy, Calibration, ClassReport, Embeddings, FewShot
from keras_vit.models.costs import layer_costs
from keras_vit.serving import timing
from keras_vit.training import TrainResult

KEYS = documented_keys()
TINY = ("--batch-size", "2")
TRAINED = ("train", "--recipe", "quickstart", "--workdir", "out")
pytestmark = pytest.mark.usefixtures("eagerly")


def values_of(capsys, *words):
    """What a command prints with `--json`, and its text without."""
    text = run(capsys, *words)[1]
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out), text


def saved():
    return keras.models.load_model("model.keras")


def test_every_command_that_answers_is_described():
    assert {command.split()[0] for command in KEYS} == set(VERBS) - {"completion"}


def test_list(capsys):
    [row], _ = values_of(capsys, "list", "ViT-Ti_16")
    assert list(row) == KEYS["list"]
    # the parameters of tests/test_zoo_parameters.py; the cost that the official code has
    assert (row["parameters"], row["image_size"], f"{row['macs'] / 1e9:.2f}") == (5_717_416, 224, "1.25")
    assert set(row["weights"]) <= set(keras_vit.list_weights("ViT-Ti_16"))


def test_list_of_weights(capsys):
    rows, text = values_of(capsys, "list", "DINOv3-S_16", "--weights")
    assert all(list(row) == KEYS["list --weights"] for row in rows) and len(rows) == len(text.splitlines()) - 1
    assert [row["file"] for row in rows] == keras_vit.list_weights("DINOv3-S_16")
    assert {row["bytes"] for row in rows} == {None}


def test_list_and_info_of_task_models(capsys):
    rows, text = values_of(capsys, "list", "hustvl/*", "--task", "detection")
    assert all(list(row) == KEYS["list --task"] for row in rows) and len(rows) == len(text.splitlines()) - 1
    values, _ = values_of(capsys, "info", "hustvl/yolos-small")
    assert list(values) == KEYS["info TASK_MODEL"]


def test_list_of_recipes(capsys):
    rows, _ = values_of(capsys, "list", "vit/finetune/*", "--recipes")
    assert [row["recipe"] for row in rows] == keras_vit.training.list_recipes("vit/finetune/*")
    for row in rows:
        recipe = keras_vit.training.RECIPES[row["recipe"]]
        assert list(row) == KEYS["list --recipes"]
        assert row["steps"] == recipe.steps and row["batch_size"] == recipe.batch_size


def test_info_of_a_model(here, capsys):
    value, _ = values_of(capsys, "info", "model.keras")
    model = saved()
    assert list(value) == KEYS["info"]
    assert value["parameters"] == model.count_params() == sum(row["parameters"] for row in value["layers"])
    assert value["macs"] == sum(cost.macs for cost in layer_costs(model))
    assert keras_vit.ViTConfig.from_dict(value["config"]) == model.config
    assert keras_vit.Preprocessing.from_dict(value["preprocessing"]) == model.preprocessing
    assert value["labels"] == ["cat", "dog", "fox"]
    assert value["layers"][0]["output_shape"] == [None, 4, 16]


def test_info_of_a_file(here, capsys):
    value, _ = values_of(capsys, "info", "ViT-Ti_16.npz")
    assert list(value) == KEYS["info FILE"]
    assert (value["layout"], value["variant"], value["family"], value["unused"]) == ("official", "ViT-Ti_16", None, {})
    assert value["config"]["hidden_dim"] == 192 and value["config"]["image_size"] == [224, 224]
    assert "gelu" in value["sources"]["the config that was saved"] and value["licence"] is None


def test_predict_and_explain(here, capsys):
    expected = keras_vit.predict(saved(), "cat.jpg", top=2)[0]
    [entry], _ = values_of(capsys, "predict", "cat.jpg", *SAVED, "--top", "2")
    sheet = json.loads(run(capsys, "explain", "cat.jpg", *SAVED, "--top", "2", "-o", "cat.png", "--json")[1])
    assert (list(entry), list(sheet)) == (KEYS["predict"], KEYS["explain"])
    assert sheet["output"] == "cat.png"
    for value in (entry, sheet):
        assert value["image"] == "cat.jpg" and [answer["label"] for answer in value["answers"]] == [
            x for x, _ in expected
        ]
        np.testing.assert_allclose(
            [answer["score"] for answer in value["answers"]], [x for _, x in expected], rtol=1e-5
        )


def test_evaluate(here, capsys, monkeypatch):
    report = ClassReport(("cat", "dog"), None, np.array([3, 1]), np.array([3, 0]), ((1, "fox", 1),))
    counts = Calibration(np.array([4]), np.array([3]), np.array([3.5]), 2.0)
    accuracy = Accuracy(4, {1: 3, 5: 4}, "by name", 0, report, counts)
    monkeypatch.setattr(keras_vit, "evaluate", lambda *arguments, **options: accuracy)
    words = ["evaluate", "--arrays", "drawings.npz", *SAVED]
    value, text = values_of(capsys, *words)
    assert list(value) == KEYS["evaluate"][:-1] and text == f"{accuracy}\n"
    plain = {"images": 4, "correct": {"1": 3, "5": 4}, "accuracy": {"1": 0.75, "5": 1.0}, "matching": "by name"}
    assert value == plain
    value, text = values_of(capsys, *words, "--report")
    assert list(value) == [*plain, *KEYS["evaluate --report"]] and text == f"{accuracy.report()}\n"
    rows = [("dog", None, 1, 0), ("cat", None, 3, 3)]
    assert value == {
        **plain,
        "mean_confidence": 0.875,
        "calibration_error": 0.125,
        "negative_log_likelihood": 0.5,
        "mean_class_accuracy": 0.5,
        "classes": [dict(zip(("class", "label", "images", "correct"), row, strict=True)) for row in rows],
        "confusions": [{"class": "dog", "answer": "fox", "images": 1}],
    }


def test_probe_and_embed(here, capsys, monkeypatch):
    result = FewShot({1: (0.5, 0.25)}, (0, 1), ("0", "1"), 8, "pooling", 1024.0)
    monkeypatch.setattr(keras_vit.evaluation, "few_shot", lambda *arguments, **options: result)
    value, text = values_of(capsys, "probe", "--arrays", "drawings.npz", *SAVED)
    assert list(value) == KEYS["probe"] and text == f"{result}\n"
    assert (value["accuracy"], value["mean"], value["std"]) == ({"1": [0.5, 0.25]}, {"1": 0.375}, {"1": 0.125})
    found = Embeddings(np.zeros((4, 16), "float32"), tuple("abcd"), "pooling")
    monkeypatch.setattr(keras_vit.evaluation, "embed", lambda *arguments, **options: found)
    value, text = values_of(capsys, "embed", "images", *SAVED, "-o", "features.npz")
    assert list(value) == KEYS["embed"] and text == "features.npz\n"
    assert value == {"output": "features.npz", "images": 4, "features": 16, "layer": "pooling"}


def test_train(here, capsys, monkeypatch):
    monkeypatch.setattr(keras_vit, "train", lambda *args, **kwargs: TrainResult(None, {}, 0.98))
    value, text = values_of(capsys, *TRAINED)
    path = str(pathlib.Path("out", "model.keras"))
    assert list(value) == KEYS["train"] and value == {"accuracy": 0.98, "saved": path, "best": None}
    assert text == f"accuracy: 98.0 %\nsaved: {path}\n"
    recipe, text = values_of(capsys, *TRAINED, "--show")
    assert json.loads(text) == recipe and keras_vit.training.Recipe.from_dict(recipe).name == "quickstart"


def test_pretrain(here, capsys, monkeypatch):
    monkeypatch.setattr(keras_vit, "train", lambda *args, **kwargs: TrainResult(None, {}, None))
    value, text = values_of(capsys, "pretrain", "images", "--from", "model.keras", "--workdir", "out", *TINY)
    path = str(pathlib.Path("out", "model.keras"))
    assert list(value) == KEYS["pretrain"] and value == {"accuracy": None, "saved": path, "best": None}
    assert text == f"saved: {path}\n"


def test_export_and_convert(here, capsys, monkeypatch):
    monkeypatch.setattr(keras_vit, "export", lambda model, path, **options: pathlib.Path(path, "3"))
    value, text = values_of(capsys, "export", *SAVED, "--output", "out", "--format", "onnx")
    assert list(value) == KEYS["export"] and value == {"output": text.strip(), "format": "onnx", "version": 3}
    value, text = values_of(capsys, "convert", *SAVED, "--layout", "timm", "--output", "w.safetensors")
    assert list(value) == KEYS["convert"] and text == "w.safetensors\n"
    assert value == {"output": "w.safetensors", "layout": "timm", "parameters": saved().count_params()}


def test_bench(tmp_path, capsys, monkeypatch):
    (tmp_path / "model_card.json").write_text('{"format": "litert", "preprocessing": {}}')
    monkeypatch.setattr(timing, "run_python", lambda *words: "[[0.5], [0.25, 0.25]]")
    value, _ = values_of(capsys, "bench", tmp_path)
    assert list(value) == KEYS["bench"] and value["speeds"][1] == {
        **{"batch_size": 8, "calls": 2, "images_per_second": 32},
        **dict.fromkeys(("p50_ms", "p90_ms", "p99_ms"), 250),
    }


def test_demo(capsys, monkeypatch):
    page, waited = types.SimpleNamespace(local_url="http://127.0.0.1:7860/", share_url=None), []
    monkeypatch.setattr(keras_vit.demo, "launch", lambda *arguments, **options: page)
    monkeypatch.setattr(keras_vit.demo, "wait", lambda page: waited.append(capsys.readouterr().out))
    assert run(capsys, "demo", "--json")[0] == 0
    [printed] = waited  # before it waits
    assert json.loads(printed) == {"address": page.local_url} and list(json.loads(printed)) == KEYS["demo"]


@pytest.mark.slow
def test_weights_and_reports_do_not_disturb_the_json(here, capsys):
    code, out, err = run(capsys, "info", *TI16[1:], "--image-size", "32", "--json")
    assert code == 0 and json.loads(out)["config"]["image_size"] == [32, 32] and "Loaded 200 arrays" in err
