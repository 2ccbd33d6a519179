"""export: the folders and versions, what is refused, and that nothing half-made is left."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from drawn import draw, encode
from faults import for_each
from served import CONFIG, LABELS, make_model, softmax

import keras_vit
from keras_vit import VisionTransformer
from keras_vit.serving import ExportError, export
from keras_vit.serving.formats import FORMATS
from keras_vit.serving.self_check import _compare, _expected, graph_inputs, self_check


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture
def quick_writer(monkeypatch):
    """A format that writes one small file: for tests of the folders."""

    def write(model, folder, top, **options):
        folder.mkdir()
        (folder / "saved_model.pb").write_text(f"top {top}")

    replace_writer(monkeypatch, write)


def replace_writer(monkeypatch, write, format="saved_model"):
    monkeypatch.setitem(FORMATS, format, dataclasses.replace(FORMATS[format], write=write))


def test_calibration_images_are_resized_for_the_model(model, tmp_path, monkeypatch):
    pytest.importorskip("nncf")
    taken = {}

    def write(model, folder, **options):
        folder.mkdir()
        taken.update(options)

    replace_writer(monkeypatch, write, "openvino")
    images = [draw(seed) for seed in range(3)]
    folder = export(model, tmp_path, "openvino", quantization="int8", calibration=images, check=False)
    inputs = np.concatenate([graph_inputs(model, image)["images"] for image in taken["calibration"]])
    protocol = model.preprocessing
    standardised = (inputs / 255 - protocol.mean) / protocol.std
    np.testing.assert_allclose(standardised, keras_vit.preprocess(images, protocol), atol=1e-5)
    card = json.loads((folder / "model_card.json").read_text())
    assert card["options"]["calibration"] == "3 images" and card["check"] is None


@pytest.mark.usefixtures("quick_writer")
def test_versions_count_up(model, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "0003").mkdir()
    assert export(model, tmp_path, check=False) == tmp_path / "4"
    assert export(model, str(tmp_path), version=9, check=False) == tmp_path / "9"
    assert export(model, tmp_path, check=False) == tmp_path / "10"
    assert export(model, tmp_path, version=2, check=False) == tmp_path / "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0003", "10", "2", "4", "9", "notes"]


@pytest.mark.usefixtures("quick_writer")
def test_a_version_is_never_overwritten(model, tmp_path):
    export(model, tmp_path, top=1, check=False)
    with pytest.raises(FileExistsError, match="version must be new, and .*/1 exists"):
        export(model, tmp_path, version=1, top=2, check=False)
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "top 1"


def test_a_version_that_appears_meanwhile_is_not_overwritten(model, tmp_path, monkeypatch):
    def write_slowly(model, folder, **options):
        for version in (folder, tmp_path / "1"):  # another process is done first
            version.mkdir()
            (version / "saved_model.pb").write_text(version.name)

    replace_writer(monkeypatch, write_slowly)
    with pytest.raises(FileExistsError, match="version must be new"):
        export(model, tmp_path, check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "1"


def test_an_interrupted_export_leaves_no_folder(model, tmp_path, monkeypatch):
    def interrupted(module, folder, signatures):
        pathlib.Path(folder, "variables").mkdir(parents=True)
        pathlib.Path(folder, "variables", "variables.index").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "toy", signatures=("images",))
    assert not (tmp_path / "toy").exists()
    (tmp_path / "serving" / "notes").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "serving", signatures=("images",))
    assert [path.name for path in (tmp_path / "serving").iterdir()] == ["notes"]


# An export whose writing stops in the middle until it is killed, or whose files have a limited size.
_EXPORTER = """
import resource, sys, time
import tensorflow as tf
from served import make_model
import keras_vit
folder, limit = sys.argv[1], int(sys.argv[2])
model = make_model()
print("ready", flush=True)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
keras_vit.export(model, folder)
"""


def exporter(folder, limit=0):
    search_path = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(keras_vit.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search_path)}
    command = [sys.executable, "-c", _EXPORTER, str(folder), str(limit)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kill_exports(model, folder, seconds):
    """Kills exports, each so many seconds after its model stands, or as soon as it has begun to write (None).

    Yields how many versions there are, all of them whole and the first as it was.
    """
    export(model, folder, check=False)
    before = content(folder / "1")
    for wait in seconds:
        process = exporter(folder)
        assert process.stdout.readline() == "ready\n"
        while wait is None and not any(path.name.startswith(".partial-") for path in folder.iterdir()):
            time.sleep(0.01)
        time.sleep(wait or 0.0)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        versions = [path for path in folder.iterdir() if path.name.isdigit()]
        assert content(folder / "1") == before
        for version in versions:
            assert set(tf.saved_model.load(str(version)).signatures) >= {"serving_default", "images"}
            assert (version / "model_card.json").is_file() or version.name == "1"
        yield len(versions)


@pytest.mark.slow
def test_a_killed_export_leaves_whole_versions(model, tmp_path):
    assert list(kill_exports(model, tmp_path, [None])) == [1]
    assert len(list(tmp_path.glob(".*"))) == 1
    assert export(model, tmp_path, check=False) == tmp_path / "2"
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.slow
def test_ten_killed_exports(model, tmp_path):
    seconds = np.random.default_rng(0).uniform(0.0, 14.0, 10)
    assert len(list(kill_exports(model, tmp_path, seconds))) == 10


@pytest.mark.slow
def test_a_full_disk_leaves_no_version(model, tmp_path):
    """The weights take a megabyte, and a file may have half of it."""
    process = exporter(tmp_path / "toy", limit=500_000)
    _, errors = process.communicate()
    assert process.returncode == 1 and "File too large" in errors and "ExportError" in errors, errors[-2000:]
    assert not (tmp_path / "toy").exists()


def test_a_folder_that_cannot_be_written(model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("here first")
    with pytest.raises(NotADirectoryError, match="path must be a folder or not exist yet; .*file is a file"):
        export(model, tmp_path / "file")

    def refuse(self, *args, **kwargs):  # root may write anywhere
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match="Permission denied: .*serving"):
        export(model, tmp_path / "serving")


@for_each(
    ("arguments", "message"),
    [
        (
            {"format": "pickle"},
            "format must be one of 'saved_model', 'onnx', 'litert', 'openvino', 'web'; got format='pickle'",
        ),
        ({"version": 0}, "version must be an integer of at least 1; got version=0"),
        ({"top": 0}, "top must be an integer of at least 1; got top=0"),
        ({"max_pixels": 0}, "max_pixels must be an integer of at least 1"),
        ({"signatures": "images"}, "signatures must be a list of at least one of serving_default, images"),
        ({"signatures": ()}, "signatures must be a list of at least one"),
        ({"signatures": ("images", "logits")}, "signatures must be one of 'serving_default', "),
        ({"signatures": ("images",), "tokens": True}, "tokens belongs to the signatures ('features',); got"),
        ({"signatures": ("images",), "top": 5}, "top belongs to the signatures ('serving_default',); got"),
        ({"signatures": ("images",), "on_error": "row"}, "on_error belongs to the signatures ('serving_default', 'f"),
        ({"signatures": iter(("images",))}, "signatures must be a list of at least one"),
        ({"check": iter(("cat.jpg",))}, "check must be True, False or a list of paths or bytes"),
        ({"check": None}, "check must be True, False or a list of paths or bytes"),
        ({"check": [b"no image"]}, "images[0] must be an image"),
        ({"check": False, "tolerance": 0.5}, "tolerance requires a check"),
        ({"on_error": "skip"}, "on_error must be one of 'row', 'raise'; got on_error='skip'"),
        ({"compute_dtype": "float64"}, "compute_dtype must be one of None, 'float32', 'float16', 'bfloat16'"),
        ({"jit_compile": "auto"}, "jit_compile must be True or False"),
        (
            {"quantization": "int8"},
            "quantization is an option of format 'onnx', 'litert', 'openvino', 'web'; got quantization='int8'",
        ),
        ({"format": "onnx", "top": 3}, "top is an option of format 'saved_model'; got top=3 with format='onnx'"),
        ({"format": "litert", "quantization": "int4"}, "quantization must be one of None, 'int8'"),
        ({"format": "openvino", "quantization": "int8"}, "calibration must be typical images"),
        ({"format": "openvino", "calibration": ["a"]}, "got quantization=None with calibration"),
        ({"check": "cat.jpg"}, "check must be True, False or a list of paths or bytes"),
        ({"check": []}, "check must be True, False or a list of paths or bytes"),
        ({"tolerance": 0}, "tolerance must be a finite number above 0"),
        ({"path": "run [v2]"}, "path must have no [ and no backslash, or TensorFlow cannot load it; got 'run [v2]'"),
        ({"force": 1}, "force must be True or False"),
    ],
)
def test_refuses_arguments(model, tmp_path, arguments, message):
    with pytest.raises(ValueError) as raised:
        export(model, **{"path": tmp_path / "toy", **arguments})
    assert message in str(raised.value)
    assert not (tmp_path / "toy").exists()


def test_refuses_models(tmp_path):
    for changes, message in (
        ({"pooling": "unpooled"}, "one score per class and image, shape \\(None, 7\\), .* returns \\(None, 12, 7\\)"),
        ({}, "model must have a trained head; that of toy is all zeros .*force=True exports it"),
    ):
        with pytest.raises(ValueError, match=message):
            export(VisionTransformer(CONFIG.replace(**changes)), tmp_path / "toy")
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got Sequential"):
        export(keras.Sequential(), tmp_path / "toy")
    for label in ("a\nb", ""):
        with pytest.raises(ValueError, match="labels must be non-empty single lines to be exported"):
            export(make_model(labels=(label, *LABELS[1:])), tmp_path / "toy")
    encoder = make_model(include_top=False)
    with pytest.raises(ValueError, match="top must be None for a model without a head, as toy; got top=5"):
        export(encoder, tmp_path / "toy", top=5)
    tokens = make_model(include_top=False, pooling="unpooled")
    with pytest.raises(ValueError, match="model must pool its tokens before the head .* has pooling='unpooled'"):
        export(tokens, tmp_path / "toy", tokens=True)
    axial = make_model(attention="axial", pooling="gap")
    with pytest.raises(ValueError, match="model must have global attention"):
        export(axial, tmp_path / "toy", signatures=("attention",))
    assert not (tmp_path / "toy").exists()


def test_weights_without_their_preprocessing_need_force(model, tmp_path):
    keras_vit.save_weights(model, tmp_path / "toy.safetensors", layout="timm")
    arrays = safetensors.numpy.load_file(tmp_path / "toy.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "toy.safetensors")  # as others write it
    fresh = VisionTransformer(CONFIG, labels=LABELS)
    keras_vit.load_weights(fresh, tmp_path / "toy.safetensors")
    assert (fresh.preprocessing_source, fresh.weights_source) == ("assumed", "toy.safetensors (timm names)")
    with pytest.raises(ValueError, match="its weights, toy.safetensors .timm names., do not define one"):
        export(fresh, tmp_path / "toy")
    copied = keras_vit.clone(fresh)
    assert (copied.preprocessing_source, copied.weights_source) == ("assumed", "toy.safetensors (timm names)")
    folder = export(fresh, tmp_path / "toy", force=True, check=False, signatures=("images",))
    card = json.loads((folder / "model_card.json").read_text())
    assert (card["preprocessing_source"], card["weights"]) == ("assumed", "toy.safetensors (timm names)")
    assert fresh.preprocessing.mean == (0.5, 0.5, 0.5)
    fresh.preprocessing = model.preprocessing
    assert fresh.preprocessing_source == "stated"
    other = VisionTransformer(CONFIG, preprocessing=model.preprocessing)
    keras_vit.load_weights(other, tmp_path / "toy.safetensors")
    assert other.preprocessing_source == "stated"


def test_weights_bring_their_preprocessing(model, tmp_path):
    keras_vit.save_weights(model, tmp_path / "hf", layout="huggingface")
    model.save(tmp_path / "toy.keras")
    for source in ("hf", "toy.keras"):
        fresh = VisionTransformer(CONFIG)
        keras_vit.load_weights(fresh, tmp_path / source)
        assert (fresh.preprocessing, fresh.preprocessing_source) == (model.preprocessing, "stated")
        headless = VisionTransformer(CONFIG.replace(classes=3))
        keras_vit.load_weights(headless, tmp_path / source)
        assert headless.preprocessing_source == "default"


@pytest.mark.slow
def test_a_quantised_model(model, tmp_path):
    quantized = keras_vit.clone(model)
    quantized.quantize("int8")
    for options in ({"format": "litert"}, {"format": "openvino"}, {"compute_dtype": "bfloat16"}):
        with pytest.raises(ValueError, match="model must not be quantised for "):
            export(quantized, tmp_path / "toy", **options)
    folder = export(quantized, tmp_path / "toy", signatures=("images",), check=False)
    pixels = np.stack([np.asarray(draw(seed, (24, 32)), "float32") for seed in range(2)])
    logits = tf.saved_model.load(str(folder)).signatures["images"](tf.constant(pixels))["logits"]
    expected = quantized.predict((pixels / 255 - model.preprocessing.mean) / model.preprocessing.std, verbose=0)
    np.testing.assert_allclose(logits, expected, atol=1e-3)


@pytest.mark.slow
def test_a_small_limit_is_kept_by_the_images_of_the_check(model, tmp_path, caplog):
    options = {"max_pixels": 500, "signatures": ("serving_default",), "tolerance": 0.5}
    assert export(model, tmp_path, **options) == tmp_path / "1"
    assert re.search("Exported .*at most 0.5 is allowed.*top-1 the same for 8 of 8 images", caplog.text)
    with pytest.raises(ExportError, match="must read the check images; it returned 'an image of 50 x 40 pixels"):
        export(model, tmp_path, max_pixels=500, signatures=("serving_default",), check=[encode(draw(0))])


def test_a_head_of_zeros_is_exported_by_force(tmp_path):
    folder = export(VisionTransformer(CONFIG), tmp_path, force=True, check=False, signatures=("images",))
    logits = tf.saved_model.load(str(folder)).signatures["images"](tf.zeros((1, 9, 9, 3)))["logits"]
    assert not logits.numpy().any()


def test_an_export_that_answers_otherwise_is_not_published(model, tmp_path, monkeypatch):
    write = FORMATS["onnx"].write  # whose runtime starts at once

    def write_another(model, folder, **options):
        head = model.get_layer("head")
        kernel = head.kernel.numpy()
        head.kernel.assign(kernel + 1e-2 * np.random.default_rng(0).normal(size=kernel.shape))
        write(model, folder, **options)
        head.kernel.assign(kernel)

    replace_writer(monkeypatch, write_another, "onnx")
    with pytest.raises(ExportError, match="must return the same as the model in memory; found: largest difference"):
        export(model, tmp_path, format="onnx")
    assert list(tmp_path.iterdir()) == []


def test_every_output_is_compared(model):
    pixels = [np.asarray(draw(seed)) for seed in range(3)]
    expected = _expected(model, pixels, {"features", "tokens"})
    scores, order = softmax(expected["logits"]), np.argsort(-expected["logits"])[:, :2]
    given = {
        "serving_default/classes": np.array(LABELS)[order],
        "serving_default/scores": np.take_along_axis(scores, order, -1),
        "serving_default/error": np.array(["", "", ""]),
        "images/logits": expected["logits"],
        "features/features": expected["features"],
        "features/tokens": expected["tokens"],
    }
    differences, same = _compare(model, pixels, given, "saved_model")
    assert max(differences.values()) < 1e-6 and same == 3
    short = {**given, "features/features": expected["features"][:2]}
    assert _compare(model, pixels, short, "saved_model")[0]["features/features"] == np.inf
    for name, values in given.items():
        wrong = np.flip(values, -1) if values.dtype.kind == "U" else values + 0.5
        if name.endswith("error"):
            with pytest.raises(ExportError, match="must read the check images; it returned 'cut'"):
                _compare(model, pixels, {**given, name: np.array(["", "cut", ""])}, "saved_model")
        elif name.endswith("classes"):
            assert _compare(model, pixels, {**given, name: wrong}, "saved_model")[1] < 3
        else:
            assert _compare(model, pixels, {**given, name: wrong}, "saved_model")[0][name] > 0.05


def test_an_export_that_does_not_run_is_told(model, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match="must run in a fresh process; it ended with 1: (.|\n)*model.onnx failed"):
        self_check(model, tmp_path, "onnx", [encode(draw(0))], [np.asarray(draw(0))], 1e-4)
