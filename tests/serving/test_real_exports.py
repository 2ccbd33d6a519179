"""A real model in every form on 200 real pictures: the answers of `keras-vit evaluate`, or nearly so in fewer bits."""

import importlib.util
import pathlib

import pytest

import keras_vit

RIGHT = 169  # what the model in memory gets, see tests/evaluation
# form of benchmarks.serving -> how many may answer otherwise, and how many fewer may be right
MAY_LOSE = {
    "SavedModel": (0, 0),
    "SavedModel, bfloat16": (4, 1),
    "ONNX": (0, 0),
    "OpenVINO": (0, 0),
    "OpenVINO, int8": (14, 3),
    "LiteRT": (0, 0),
    "LiteRT, int8": (4, 3),
}


@pytest.fixture(scope="module")
def benchmark():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "serving.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_serving", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.FORMS) == set(MAY_LOSE)
    return module


@pytest.fixture(scope="module")
def model(real_data):
    preprocessing = keras_vit.Preprocessing(size=248, crop=224, interpolation="bicubic")
    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    return keras_vit.ViT_Ti16(weights=weights, preprocessing=preprocessing)


@pytest.mark.slow
@pytest.mark.parametrize("form", MAY_LOSE)
def test_two_hundred_pictures(benchmark, model, real_data, form):
    paths = sorted((real_data / "imagenet200").glob("*/*"))
    ((_, row),) = benchmark.measure(model, paths, {form: benchmark.FORMS[form]})
    print(form, row)
    others, fewer = MAY_LOSE[form]
    assert len(paths) == 200 and row["same"] >= 200 - others and row["right"] >= RIGHT - fewer
