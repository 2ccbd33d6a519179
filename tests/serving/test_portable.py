"""ONNX, LiteRT and OpenVINO: the file answers as the model does, in its own runtime, for batches of any size."""

import json
import re
import textwrap

import numpy as np
import pytest
from conftest import TESTS
from drawn import draw, encode
from served import LABELS, make_model, model_input
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing
from keras_vit.models import resize, with_dtype
from keras_vit.serving import ExportError, export, fresh_process
from keras_vit.serving.self_check import resized
from keras_vit.serving.tasks import call_arrays, example_arrays

IMAGES = [draw(seed) for seed in range(12)]
INT8, CALIBRATED = {"quantization": "int8"}, {"quantization": "int8", "calibration": np.stack(IMAGES)}
FLOAT16 = {"compute_dtype": "float16"}
CASES = {
    "onnx": ("onnx", {}, ["model.onnx"]),
    "litert": ("litert", {}, ["model.tflite"]),
    "openvino": ("openvino", {}, ["model.bin", "model.xml"]),
    "litert int8": ("litert", INT8, ["model.tflite"]),
    "openvino int8": ("openvino", CALIBRATED, ["model.bin", "model.xml"]),
    "openvino float16": ("openvino", FLOAT16, ["model.bin", "model.xml"]),
    "onnx float16": ("onnx", FLOAT16, ["model.onnx"]),
    "onnx int8": ("onnx", CALIBRATED, ["model.onnx"]),
}
# precision -> tolerance of the check, least and largest difference, and bytes of the file per byte of the weights
PRECISIONS = {
    None: (1e-4, 0, 1e-5, 1.2),
    "float16": (0.02, 1e-5, 0.005, 0.6),
    "int8": (0.25, 1e-4, 0.2, 0.45),
}


@pytest.fixture(scope="module")
def model():
    return make_model()


def run_program(folder, monkeypatch):
    """Run the program of README.txt in the folder of an export."""
    monkeypatch.chdir(folder)
    program = re.search(r"pip install [a-z -]+:\n((\n|  .*\n)+)", (folder / "README.txt").read_text())[1]
    exec(textwrap.dedent(program), {})


@pytest.mark.parametrize("case", slow_after(3, CASES))
def test_it_answers_as_the_model_does(model, tmp_path, case, capfd, caplog, monkeypatch):
    runtime, options, files = CASES[case]
    folder = export(model, tmp_path, format=runtime, **options)
    beside = ["README.txt", "labels.txt", "model_card.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*files, *beside])
    assert (folder / "labels.txt").read_text().splitlines() == list(LABELS)
    check = json.loads((folder / "model_card.json").read_text())["check"]
    *_, report = caplog.messages
    assert re.fullmatch(r"Exported .*, top-1 the same for [5678] of 8 images", report)
    assert capfd.readouterr().out == ""  # no converter's lines, no bars of its calibration

    pixels = resized(model, [np.asarray(image) for image in IMAGES])
    outputs, described = fresh_process.run(runtime, folder, {"images": pixels})  # batches of 8 and of 4
    expected = model.predict(((pixels / 255 - model.preprocessing.mean) / model.preprocessing.std), verbose=0)
    difference = np.abs(outputs["logits"] - expected).max() / max(1, np.abs(expected).max())
    tolerance, least, largest, most = PRECISIONS[options.get("compute_dtype", options.get("quantization"))]
    assert check["tolerance"] == tolerance and least < difference < largest
    size = (folder / files[0]).stat().st_size / sum(weight.nbytes for weight in model.get_weights())
    assert 0.2 < size < most
    (taken,), (given,) = described["inputs"], described["outputs"]  # named as in the signature `images` of a SavedModel
    assert taken == {"name": "images", "dtype": "float32", "shape": [None, 24, 32, 3]}
    assert given["name"] == "logits" and given["dtype"] == "float32"
    IMAGES[0].save(folder / "cat.jpg", "PNG")
    run_program(folder, monkeypatch)
    label, score = capfd.readouterr().out.split()
    expected = model.predict(model_input(IMAGES[0])[None], verbose=0)[0]
    assert label == LABELS[expected.argmax()]
    # OpenVINO may compute in bfloat16
    assert float(score) == pytest.approx(expected.max(), abs=0.3 if options else 0.02)


@pytest.mark.slow
def test_a_grey_model_that_ends_in_an_activation_is_called_by_its_own_names(tmp_path):
    grey = Preprocessing(size=(24, 32), mean=(0.5,), std=(0.5,))
    model = make_model(preprocessing=grey, channels=1, classifier_activation="sigmoid")
    folder = export(model, tmp_path, format="openvino")
    assert json.loads((folder / "model_card.json").read_text())["outputs"][0]["name"] == "scores"
    program = (folder / "README.txt").read_text()
    assert 'convert("L")' in program and "reshape(1, 24, 32, 1)" in program and '["scores"]' in program


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "openvino", "litert"])
def test_an_encoder_returns_features(tmp_path, runtime, capfd, monkeypatch):
    model = make_model(include_top=False)
    folder = export(model, tmp_path, format=runtime)
    assert not (folder / "labels.txt").exists()
    card = json.loads((folder / "model_card.json").read_text())
    assert card["labels"] is None and card["outputs"] == [
        {"name": "features", "dtype": "float32", "shape": [None, 160]}
    ]
    assert {*card["check"]["largest_differences"]} == {"features"} and card["check"]["same_top1"] is None
    IMAGES[0].save(folder / "cat.jpg", "PNG")
    run_program(folder, monkeypatch)
    assert capfd.readouterr().out == "(1, 160)\n" and "labels" not in (folder / "README.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
@pytest.mark.parametrize("task", ["sam_prompts", "owlv2"])
def test_a_task_model_takes_arrays(tmp_path, task, runtime, capfd, monkeypatch):
    model = keras_vit.load(TESTS / "golden_tasks" / task)
    folder = export(model, tmp_path, format=runtime)
    assert not (folder / "labels.txt").exists()
    arrays = example_arrays(model, np.asarray(IMAGES[0]))
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    run_program(folder, monkeypatch)
    expected = [tuple(x.shape) for x in call_arrays(model, arrays).values()]
    assert capfd.readouterr().out == f"{expected}\n"


@pytest.mark.slow
def test_litert_computes_no_sizes_as_it_runs(model, tmp_path):
    """It may lose them when its input is given the same size again, and answers wrongly from then on."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    file = export(model, tmp_path, format="litert", check=False) / "model.tflite"
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(str(file), experimental_op_resolver_type=resolver)
    operations = {operation["op_name"] for operation in interpreter._get_ops_details()}
    assert {"FULLY_CONNECTED", "GELU"} <= operations and not {"SHAPE", "PACK"} & operations


@pytest.mark.slow
def test_a_model_of_16_bits_is_written_in_32(model, tmp_path):
    folder = export(with_dtype(model, "mixed_bfloat16"), tmp_path, format="openvino", check=False)
    pixels = resized(model, [np.asarray(IMAGES[0])])
    outputs, _ = fresh_process.run("openvino", folder, {"images": pixels})
    expected = model.predict(((pixels / 255 - model.preprocessing.mean) / model.preprocessing.std), verbose=0)
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-4)


@pytest.mark.slow
def test_a_quantised_file_leaves_no_float_weights_beside_it(model, tmp_path, monkeypatch):
    onnx_graph = pytest.importorskip("keras_vit.serving.onnx_graph")
    monkeypatch.setattr(onnx_graph, "_MAX_FILE", 100_000)
    folder = export(model, tmp_path, format="onnx", **CALIBRATED)
    assert [path.name for path in folder.glob("model.*")] == ["model.onnx"]
    assert (folder / "model.onnx").stat().st_size < 400_000


def test_a_missing_package_is_named(model, tmp_path, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else found(name))
    with pytest.raises(ImportError, match="format='onnx' needs onnx: pip install onnx$"):
        export(model, tmp_path / "toy", format="onnx")
    assert not (tmp_path / "toy").exists()


@pytest.mark.slow
def test_an_answer_beyond_the_tolerance_is_an_error(model, tmp_path):
    with pytest.raises(ExportError, match="at most 1e-06 is allowed"):
        export(model, tmp_path, format="litert", quantization="int8", tolerance=1e-6, check=[encode(IMAGES[0])])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_a_model_for_images_of_any_size_has_open_axes(tmp_path, runtime):
    model = resize(make_model(), "any")
    folder = export(model, tmp_path, format=runtime)
    step = model.config.patch_size[0]
    for rows, columns in ((2, 2), (3, 1), (1, 4)):
        pixels = np.random.default_rng(7).uniform(0, 255, (2, rows * step, columns * step, 3)).astype("float32")
        outputs, _ = fresh_process.run(runtime, folder, {"images": pixels})
        (found,) = outputs.values()
        prepared = (pixels / 255 - model.preprocessing.mean) / model.preprocessing.std
        np.testing.assert_allclose(found, model.predict(prepared.astype("float32"), verbose=0), atol=1e-4)
