import io
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.serving import export
from keras_vit.serving.export import FORMATS

LABELS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
CONFIG = ViTConfig(
    name="toy",
    image_size=(24, 32),
    patch_size=8,
    hidden_dim=160,
    num_layers=1,
    num_heads=4,
    mlp_dim=320,
    classes=7,
    dropout_rate=0.1,
)
PREPROCESSING = Preprocessing(
    size=(24, 32), interpolation="bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)

# What a user without this package runs: prints the answers as JSON.
CLIENT = """
import json, pathlib, sys
import tensorflow as tf

folder, *files = sys.argv[1:]
served = tf.saved_model.load(folder)
contents = [pathlib.Path(file).read_bytes() for file in files]
answer = served.signatures["serving_default"](image_bytes=tf.constant(contents))
pixels = tf.cast(tf.stack([tf.io.decode_png(content) for content in contents]), tf.float32)
outputs = served.signatures["images"](images=pixels)
names = [[name.decode() for name in row] for row in answer["classes"].numpy()]
scores, logits = answer["scores"].numpy().tolist(), outputs["logits"].numpy().tolist()
print(json.dumps([names, scores, logits, list(sys.modules)]))
"""


def make_model(**changes):
    model = VisionTransformer(CONFIG.replace(**changes), preprocessing=PREPROCESSING, labels=LABELS)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable.numpy() + 0.05 * rng.normal(size=variable.shape))
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return export(model, tmp_path_factory.mktemp("export") / "new" / "toy", top=3)


@pytest.fixture
def pictures(tmp_path):
    """Three PNG files of 40 x 50 pixels and what the model eats of them, by Pillow and NumPy."""
    rng = np.random.default_rng(1)
    files, inputs = [], []
    for index in range(3):
        coarse = PIL.Image.fromarray(rng.integers(0, 256, size=(5, 6, 3)).astype("uint8"))
        picture = coarse.resize((50, 40), PIL.Image.Resampling.BICUBIC)
        files.append(tmp_path / f"{index}.png")
        picture.save(files[-1])
        small = np.asarray(picture.resize((32, 24), PIL.Image.Resampling.BICUBIC), "float32")
        inputs.append((small / 255 - PREPROCESSING.mean) / PREPROCESSING.std)
    return files, np.stack(inputs).astype("float32")


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def test_plain_tensorflow_in_a_fresh_process_gives_the_scores_of_the_model(model, exported, pictures):
    files, inputs = pictures
    command = [sys.executable, "-c", CLIENT, str(exported), *map(str, files)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    classes, scores, logits, modules = json.loads(done.stdout.splitlines()[-1])

    expected = model.predict(inputs, verbose=0)
    order = np.argsort(-expected, axis=-1)[:, :3]
    assert classes == [[LABELS[index] for index in row] for row in order]
    # Pillow and TensorFlow may round a resized pixel to neighbouring levels.
    np.testing.assert_allclose(logits, expected, atol=0.02)
    np.testing.assert_allclose(scores, np.take_along_axis(softmax(np.array(logits)), order, -1), rtol=1e-4)
    assert np.ptp(expected) > 0.5  # the comparison means something
    assert "tensorflow" in modules and "keras_vit" not in modules


def test_session_of_the_c_api_kind_loads_it(exported, model, pictures):
    files, inputs = pictures
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(exported))
        signature = graph.signature_def["images"]
        logits = session.run(
            signature.outputs["logits"].name,
            {signature.inputs["images"].name: np.stack([np.asarray(PIL.Image.open(file)) for file in files])},
        )
    np.testing.assert_allclose(logits, model.predict(inputs, verbose=0), atol=0.02)


def test_signatures_and_operations(exported):
    served = tf.saved_model.load(str(exported))
    assert set(served.signatures) == {"serving_default", "images"}
    by_bytes, by_pixels = served.signatures["serving_default"], served.signatures["images"]
    assert by_bytes.structured_input_signature[1] == {"image_bytes": tf.TensorSpec([None], tf.string, "image_bytes")}
    assert by_pixels.structured_input_signature[1] == {
        "images": tf.TensorSpec([None, None, None, 3], tf.float32, "images")
    }
    assert by_bytes.structured_outputs["scores"].shape.as_list() == [None, 3]
    assert by_pixels.structured_outputs["logits"].shape.as_list() == [None, 7]
    functions = [by_bytes.graph.as_graph_def(), by_pixels.graph.as_graph_def()]
    nodes = [node for graph in functions for node in graph.node]
    nodes += [node for graph in functions for function in graph.library.function for node in function.node_def]
    operations = {node.op for node in nodes}
    assert {"DecodeJpeg", "MatMul"} < operations
    assert not {name for name in operations if "PyFunc" in name}
    assert all(hasattr(tf.raw_ops, name) for name in operations)  # TensorFlow's own, none of another library


def test_weights_are_stored_once(exported, model):
    stored = sum(file.stat().st_size for file in (exported / "variables").iterdir())
    weights = sum(np.asarray(weight).nbytes for weight in model.get_weights())
    assert weights > 500_000
    assert weights < stored <= 1.02 * weights


def test_labels_stand_in_assets(exported):
    assert (exported / "assets" / "labels.txt").read_text().splitlines() == list(LABELS)


def test_model_without_labels_and_with_softmax(tmp_path):
    model = make_model(classifier_activation="softmax")
    model.labels = None
    served = tf.saved_model.load(str(export(model, tmp_path, top=99)))
    picture = np.random.default_rng(2).integers(0, 256, size=(24, 32, 3)).astype("uint8")
    stream = io.BytesIO()
    PIL.Image.fromarray(picture).save(stream, "PNG")
    answer = served.signatures["serving_default"](tf.constant([stream.getvalue()]))
    inputs = (picture / 255 - PREPROCESSING.mean) / PREPROCESSING.std
    expected = model.predict(inputs[None].astype("float32"), verbose=0)[0]
    order = np.argsort(-expected)
    assert [name.decode() for name in answer["classes"].numpy()[0]] == [f"class_{index}" for index in order]
    np.testing.assert_allclose(answer["scores"].numpy()[0], expected[order], rtol=1e-4)
    assert answer["scores"].numpy().sum() == pytest.approx(1.0, abs=1e-5)
    scores = served.signatures["images"](tf.constant(picture[None], tf.float32))["scores"]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-4)


@pytest.fixture
def quick_writer(monkeypatch):
    """A format that writes one small file: for tests of the folders."""

    def write(model, folder, top):
        folder.mkdir()
        (folder / "saved_model.pb").write_text(f"top {top}")

    monkeypatch.setitem(FORMATS, "saved_model", write)


def test_versions_count_up(model, tmp_path, quick_writer):
    (tmp_path / "notes").mkdir()
    (tmp_path / "0003").mkdir()
    assert export(model, tmp_path) == tmp_path / "4"
    assert export(model, str(tmp_path), version=9) == tmp_path / "9"
    assert export(model, tmp_path) == tmp_path / "10"
    assert export(model, tmp_path, version=2) == tmp_path / "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0003", "10", "2", "4", "9", "notes"]


def test_a_version_is_never_overwritten(model, tmp_path, quick_writer):
    export(model, tmp_path, top=1)
    with pytest.raises(FileExistsError, match="version must be new, .* never overwritten; .*/1 exists"):
        export(model, tmp_path, version=1, top=2)
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "top 1"


def test_a_version_that_appears_meanwhile_is_not_overwritten(model, tmp_path, monkeypatch):
    def write_slowly(model, folder, top):
        for version in (folder, tmp_path / "1"):  # another process is done first
            version.mkdir()
            (version / "saved_model.pb").write_text(version.name)

    monkeypatch.setitem(FORMATS, "saved_model", write_slowly)
    with pytest.raises(FileExistsError, match="never overwritten"):
        export(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "1"


def test_an_interrupted_export_leaves_no_folder(model, tmp_path, monkeypatch):
    def interrupted(module, folder, signatures):
        pathlib.Path(folder, "variables").mkdir(parents=True)
        pathlib.Path(folder, "variables", "variables.index").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "toy")
    assert list((tmp_path / "toy").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "arguments", "error", "message"),
    [
        ({}, {"format": "onnx"}, ValueError, "format must be one of 'saved_model'; got format='onnx'"),
        ({}, {"version": 0}, ValueError, "version must be an integer of at least 1; got version=0"),
        ({}, {"top": 0}, ValueError, "top must be an integer of at least 1; got top=0"),
        ({"include_top": False}, {}, ValueError, "model must have a head"),
        ({"classifier": "unpooled"}, {}, ValueError, "got outputs of shape (None, 12, 7)"),
    ],
)
def test_refuses(tmp_path, changes, arguments, error, message):
    model = VisionTransformer(CONFIG.replace(**changes))
    with pytest.raises(error) as raised:
        export(model, tmp_path / "toy", **arguments)
    assert message in str(raised.value)
    assert not (tmp_path / "toy").exists()


def test_refuses_a_model_of_another_package(tmp_path):
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got Sequential"):
        export(keras.Sequential(), tmp_path)


def test_refuses_a_path_that_is_a_file(model, tmp_path):
    (tmp_path / "file").write_text("here first")
    with pytest.raises(NotADirectoryError, match="path must be a folder or not exist yet; .*file is a file"):
        export(model, tmp_path / "file")


def test_another_backend_is_told_the_way(model, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="this process runs 'jax'.*model.save.*KERAS_BACKEND=tensorflow"):
        export(model, tmp_path)
