"""benchmarks.serving: a row for each form, with what it answered; of a real model nearly what it answers in memory."""

import importlib.util
import pathlib

import pytest
from drawn import draw, encode
from served import make_model

import keras_vit

RIGHT = 169  # what the model in memory gets, see tests/evaluation
# form of benchmarks.serving -> how many may answer otherwise, and how many fewer may be right
MAY_LOSE = {
    "SavedModel": (0, 0),
    "SavedModel, bfloat16": (3, 1),
    "SavedModel, float16": (1, 1),
    "ONNX": (0, 0),
    "ONNX, float16": (1, 1),
    "ONNX, int8": (5, 3),
    "OpenVINO": (0, 0),
    "OpenVINO, float16": (1, 1),
    "OpenVINO, int8": (5, 3),
    "LiteRT": (0, 0),
    "LiteRT, int8": (5, 3),  # 3 or 4 of 200, depending on the processor
}


@pytest.fixture(scope="module")
def benchmark():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "serving.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_serving", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.FORMS) == set(MAY_LOSE)
    return module


@pytest.mark.slow
def test_a_row_for_each_form(benchmark, tmp_path, monkeypatch, capsys):
    model = make_model()
    model.save(tmp_path / "model.keras")
    for seed in range(10):
        file = encode(draw(seed), "JPEG")
        ((name, _),) = keras_vit.predict(model, file, top=1)[0]
        folder = tmp_path / "images" / (name if seed else "fox")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{seed}.jpg").write_bytes(file)
    for name in set(benchmark.FORMS) - {"SavedModel", "LiteRT", "LiteRT, int8"}:
        monkeypatch.delitem(benchmark.FORMS, name)
    words = ["--model", tmp_path / "model.keras", "--folder", tmp_path / "images"]
    monkeypatch.setattr("sys.argv", ["serving.py", *map(str, words)])
    benchmark.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["form", "MB", "same", "right", "of", "alone/s", "files/s"]
    wrong = keras_vit.predict(model, encode(draw(0), "JPEG"), top=1)[0][0][0] != "fox"
    table = {row[:22].strip(): row[22:].split() for row in rows}
    assert list(table) == ["SavedModel", "LiteRT", "LiteRT, int8"]
    assert table["SavedModel"][1:4] == table["LiteRT"][1:4] == ["10", str(10 - wrong), "10"]
    assert 0.2 < float(table["LiteRT, int8"][0]) < float(table["LiteRT"][0]) < 1.5


@pytest.fixture(scope="module")
def model(real_data):
    preprocessing = keras_vit.Preprocessing(size=248, crop=224, interpolation="bicubic")
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    return keras_vit.ViT_Ti16(weights=weights, preprocessing=preprocessing)


@pytest.mark.slow
@pytest.mark.parametrize("form", MAY_LOSE)
def test_two_hundred_images(benchmark, model, real_data, form):
    paths = sorted((real_data / "imagenet200").glob("*/*"))
    ((_, row),) = benchmark.measure(model, paths, {form: benchmark.FORMS[form]})
    print(form, row)
    others, fewer = MAY_LOSE[form]
    assert len(paths) == 200 and row["same"] >= 200 - others and row["right"] >= RIGHT - fewer
