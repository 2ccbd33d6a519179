"""keras_vit.serving.timing: images per second and percentiles of an export's calls, in a process of its runtime."""

import json
import pathlib
import sys
import time

import numpy as np
import pytest
from conftest import TESTS
from served import make_model
from slow_rows import slow_after

import keras_vit
from keras_vit.serving import ExportError, export, fresh_timing, timing

CARD = {"format": "onnx", "preprocessing": {"size": 32, "crop": 24}}


def write(folder, card=CARD):
    folder.mkdir(parents=True)
    (folder / "model_card.json").write_text(json.dumps(card))
    return folder


@pytest.fixture
def asked(monkeypatch):
    """What the process is asked; it answers with calls of 1 to 100 ms for the first size, one for the second."""
    jobs = []

    def run_python(words, expectation):
        jobs.append((words[2:4], json.loads(words[-1])))
        return "a line of the runtime\n" + json.dumps([[n / 1000 for n in range(100, 0, -1)], [0.5]])

    monkeypatch.setattr(timing, "run_python", run_python)
    return jobs


def test_rates_and_percentiles(tmp_path, asked):
    for version in ("2", "10", "9", "x11"):
        write(tmp_path / version)
    found = timing.measure(tmp_path, [1, 4], 6)
    assert asked == [(["onnx", str(tmp_path / "10")], {"batch_sizes": [1, 4], "image_size": [24, 24], "seconds": 3.0})]
    one, four = found.pop("speeds")
    assert found == {"folder": str(tmp_path / "10"), "format": "onnx"}
    assert (one.pop("batch_size"), one.pop("calls"), four["batch_size"], four["calls"]) == (1, 100, 4, 1)
    # 100 calls take 5.05 s; the sorted times are 1, ..., 100 ms, so a share p of the way from the first is 1 + 99 p
    assert one == pytest.approx({"images_per_second": 100 / 5.05, "p50_ms": 50.5, "p90_ms": 90.1, "p99_ms": 99.01})
    assert four["images_per_second"] == pytest.approx(8) and four["p50_ms"] == four["p99_ms"] == pytest.approx(500)


def test_a_version_is_measured_itself(tmp_path, asked):
    write(tmp_path / "3")
    assert timing.measure(write(tmp_path / "2"), [1, 8], 1)["folder"] == str(tmp_path / "2")


def test_calls_of_a_runtime(monkeypatch):
    calls = []

    def call(arrays):
        calls.append(arrays["images"])
        time.sleep(0.2 if len(calls) == 1 else 0.01)

    opened = call, [("images", "float32", ["N", 24, None, 3])], [("logits", "float32", ["N", 7])]
    monkeypatch.setitem(fresh_timing._FRESH["RUNTIMES"], "toy", lambda folder: opened)
    one, five = fresh_timing.time_calls("toy", pathlib.Path(), [1, 5], [16, 32], 0.1)
    assert 1 <= len(one) <= 11 and 0.01 <= min(one) and max(one) < 0.2  # without the first calls
    ones, fives = (
        [images for images in calls if images.shape == (batch, 24, 32, 3) and images.dtype == "float32"]
        for batch in (1, 5)
    )
    assert (len(ones), len(fives)) == (len(one) + 3, len(five) + 3) and len(ones) + len(fives) == len(calls)
    assert fives[0].min() == 0 and fives[0].max() == 255
    assert [len(times) for times in fresh_timing.time_calls("toy", pathlib.Path(), [2], [16, 32], 1e-9)] == [1]


FILES = {"onnx": "model.onnx", "saved_model": "saved_model.pb", "litert": "model.tflite", "openvino": "model.xml"}


@pytest.mark.parametrize("format", slow_after(1, FILES))
def test_an_export_runs(tmp_path, format):
    folder = export(make_model(), tmp_path, format=format, check=False)
    for speed, batch in zip(timing.measure(tmp_path, [1, 16], 0.2)["speeds"], (1, 16), strict=True):
        mean = batch / speed["images_per_second"]  # seconds of a call
        assert speed["batch_size"] == batch and 0 < mean * speed["calls"] < 0.2 + 0.2  # the last one ends later
        assert 0 < speed["p50_ms"] <= speed["p90_ms"] <= speed["p99_ms"]
    (folder / FILES[format]).unlink()
    with pytest.raises(ExportError, match="the exported model must run in a fresh process; it ended with 1: "):
        timing.measure(folder, [1], 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("case", [("dpt_depth", "openvino"), ("owlv2", "onnx"), ("sam_prompts", "saved_model")])
def test_a_task_model_runs(tmp_path, case):
    """One input, and inputs with prompts."""
    file, format = case
    export(keras_vit.load(TESTS / "golden_tasks" / file), tmp_path, format=format, check=False)
    one, two = timing.measure(tmp_path, [1, 2], 0.1)["speeds"]
    assert one["calls"] > 0 and two["calls"] > 0


@pytest.mark.slow
def test_a_saved_model_that_takes_files_alone_is_refused(tmp_path):
    export(make_model(), tmp_path, signatures=("serving_default",), check=False)
    with pytest.raises(ExportError, match=r"must have one of the signatures arrays, .*; it has \['serving_default'\]"):
        timing.measure(tmp_path, [1], 0.1)


def test_mistakes(tmp_path, monkeypatch):
    faults = {
        tmp_path / "none": "folder must be one that export has written; got .*none'.*: there is no such folder",
        tmp_path: "got .*: it has no model_card.json",
        write(tmp_path / "text", "[]"): "model_card.json must hold a JSON object",
        write(tmp_path / "other", {"format": "tflite"}): "format in .* must be one of .*'litert'.*; got .*'tflite'",
    }
    for folder, message in faults.items():
        with pytest.raises((ValueError, OSError, TypeError), match=message):
            timing.measure(folder, [1], 1)
    for seconds in (0, -1, np.nan):
        with pytest.raises(ValueError, match="seconds must be a finite number above 0"):
            timing.measure(write(tmp_path / f"good{seconds}"), [1], seconds)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="'onnx' needs onnxruntime: pip install onnxruntime$"):
        timing.measure(tmp_path / "good0", [1], 1)
