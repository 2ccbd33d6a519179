"""The SavedModel: what it answers without this package, what lies in its folder, in 16 bits, and through a service."""

import json
import pathlib
import re
import subprocess
import sys
from concurrent import futures

import grpc
import keras
import numpy as np
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import LABELS, make_model, model_input, softmax
from slow_rows import slow_after
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2, prediction_service_pb2_grpc

import keras_vit
from keras_vit.analysis import rollout_model
from keras_vit.serving import export
from keras_vit.serving.signatures import DEFAULT_SIGNATURES

SIGNATURES = (*DEFAULT_SIGNATURES, "attention")  # test_native.py tests `native`

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


def check_answers(model, inputs, classes, scores, logits):
    expected = np.asarray(model(inputs))
    order = np.argsort(-expected, axis=-1)[:, :3]
    assert classes == [[LABELS[index] for index in row] for row in order]
    # Pillow and TensorFlow may round a resized pixel to neighbouring values.
    np.testing.assert_allclose(logits, expected, atol=0.02)
    np.testing.assert_allclose(scores, np.take_along_axis(softmax(np.array(logits)), order, -1), rtol=1e-4)
    assert np.ptp(expected) > 0.5  # the comparison means something


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """Every signature."""
    folder = tmp_path_factory.mktemp("export") / "new" / "toy"
    return export(model, folder, top=3, signatures=SIGNATURES, tokens=True, check=False)


@pytest.fixture(scope="module")
def served(exported):
    return tf.saved_model.load(str(exported)).signatures


@pytest.fixture(scope="module")
def drawn_files():
    """Three PNG files of 40 x 50 pixels and what the model eats of them, by Pillow and NumPy."""
    images = [draw(seed) for seed in (1, 2, 3)]
    return [encode(image) for image in images], np.stack([model_input(image) for image in images])


def test_it_gives_the_scores_of_the_model(model, served, drawn_files):
    files, inputs = drawn_files
    answer = served["serving_default"](image_bytes=tf.constant(files))
    pixels = tf.cast(tf.stack([tf.io.decode_png(content) for content in files]), tf.float32)
    logits = served["images"](images=pixels)["logits"]
    classes = [[name.decode() for name in row] for row in answer["classes"].numpy()]
    check_answers(model, inputs, classes, answer["scores"].numpy(), logits.numpy())


@pytest.mark.slow
def test_every_signature_is_compared_with_the_model_in_a_fresh_process(model, tmp_path):
    folder = export(model, tmp_path, signatures=SIGNATURES, tokens=True)
    check = json.loads((folder / "model_card.json").read_text())["check"]
    assert check["images"] == check["same_top1"] == 8
    assert 0 < max(check["largest_differences"].values()) < 1e-4 == check["tolerance"]


@pytest.mark.slow
def test_lora_is_merged(drawn_files, tmp_path):
    """The answers are those of the model to 1e-5, and the variables of the folder are those of a model without LoRA."""
    model = make_model()
    count = len(model.variables)
    keras_vit.add_lora(model, rank=2, alpha=3)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(variable.numpy() + 0.2 * rng.normal(size=variable.shape))
    served = tf.saved_model.load(str(export(model, tmp_path / "lora", check=False, signatures=("images",))))
    pixels = tf.cast(tf.stack([tf.io.decode_png(content) for content in drawn_files[0]]), tf.float32)
    logits = served.signatures["images"](images=pixels)["logits"].numpy()
    pixels = np.asarray(keras_vit.preprocess(pixels.numpy(), model.preprocessing, (0, 255)))
    expected = model.predict(pixels, verbose=0)
    assert np.abs(expected - make_model().predict(pixels, verbose=0)).max() > 0.1
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    stored = [name for name, _ in tf.train.list_variables(f"{tmp_path}/lora/1/variables/variables")]
    assert sum("variables_of_model" in name for name in stored) == count
    assert sum(weight.path.count("lora") for weight in model.weights) > 0  # the model itself keeps it


@pytest.mark.slow
def test_plain_tensorflow_in_a_fresh_process_gives_the_scores_of_the_model(model, exported, drawn_files, tmp_path):
    files, inputs = drawn_files
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file)
    command = [sys.executable, "-c", CLIENT, str(exported), *map(str, paths)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    classes, scores, logits, modules = json.loads(done.stdout.splitlines()[-1])
    check_answers(model, inputs, classes, scores, logits)
    assert "tensorflow" in modules and "keras_vit" not in modules


def test_session_of_the_c_api_kind_loads_it(exported, model, drawn_files):
    _, inputs = drawn_files
    pixels = np.stack([np.asarray(draw(seed)) for seed in (1, 2, 3)])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(exported))
        signature = graph.signature_def["images_uint8"]
        logits = session.run(signature.outputs["logits"].name, {signature.inputs["images"].name: pixels})
    np.testing.assert_allclose(logits, model(inputs), atol=0.02)


def test_signatures_and_operations(served):
    assert set(served) == set(SIGNATURES)
    taken = {name: signature.structured_input_signature[1] for name, signature in served.items()}
    files = {"image_bytes": tf.TensorSpec([None], tf.string, "image_bytes")}
    assert taken["serving_default"] == taken["features"] == taken["attention"] == files
    assert taken["images"] == {"images": tf.TensorSpec([None, None, None, 3], tf.float32, "images")}
    assert taken["images_uint8"] == {"images": tf.TensorSpec([None, None, None, 3], tf.uint8, "images")}
    given = {
        name: {key: spec.shape.as_list() for key, spec in served[name].structured_outputs.items()} for name in served
    }
    assert given == {
        "serving_default": {"classes": [None, 3], "scores": [None, 3], "error": [None]},
        "images": {"logits": [None, 7]},
        "images_uint8": {"logits": [None, 7]},
        "features": {"features": [None, 160], "tokens": [None, 13, 160], "error": [None]},
        "attention": {"attention": [None, 3, 4], "error": [None]},
    }
    graphs = [signature.graph.as_graph_def() for signature in served.values()]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for graph in graphs for function in graph.library.function for node in function.node_def]
    operations = {node.op for node in nodes}
    assert {"DecodeJpeg", "MatMul"} < operations
    assert not {name for name in operations if "PyFunc" in name}
    assert all(hasattr(tf.raw_ops, name) for name in operations)  # TensorFlow's own, none of another library


@pytest.mark.slow
def test_features_tokens_and_attention(model, served, drawn_files):
    files, inputs = drawn_files
    inner = keras.Model(model.input, [model.get_layer(name).output for name in ("pooling", "encoder_norm")])
    features, tokens = inner(inputs)
    answer = served["features"](tf.constant(files))
    np.testing.assert_allclose(answer["features"], features, atol=0.02)
    np.testing.assert_allclose(answer["tokens"], tokens, atol=0.02)
    maps = served["attention"](tf.constant(files))["attention"]
    np.testing.assert_allclose(maps, rollout_model(model)(inputs), atol=1e-3)


def test_weights_are_stored_once(exported, model):
    stored = sum(file.stat().st_size for file in (exported / "variables").iterdir())
    weights = sum(np.asarray(weight).nbytes for weight in model.get_weights())
    assert weights > 500_000
    assert weights < stored <= 1.02 * weights


def test_labels_card_and_instructions_lie_in_the_folder(exported, model):
    assert (exported / "assets" / "labels.txt").read_text().splitlines() == list(LABELS)
    card = json.loads((exported / "model_card.json").read_text())
    assert card["labels"] == list(LABELS) and card["check"] is None
    assert keras_vit.Preprocessing.from_dict(card["preprocessing"]) == model.preprocessing
    text = (exported / "README.txt").read_text()
    assert all(f"  {name}: " in text for name in SIGNATURES)
    assert "--model_name=toy" in text and "-> scores: float32 [batch, 3]" in text and "64,000,000" in text


def test_the_instructions_name_the_formats_that_are_read(exported, served):
    [formats] = re.findall(r"complete files: ([^.]*)\.", " ".join((exported / "README.txt").read_text().split()))
    assert formats == "JPEG, PNG, BMP, the first frame of a GIF, or WebP that is not animated"
    frames = [draw(seed) for seed in (1, 2)]
    files = [encode(frames[0], image_format) for image_format in ("JPEG", "PNG", "BMP", "GIF", "WEBP")]
    animated = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    errors = served["serving_default"](tf.constant([*files, animated]))["error"].numpy()
    assert list(errors[:-1]) == [b""] * 5 and errors[-1] != b""


@pytest.mark.slow
def test_model_without_labels_and_with_softmax(tmp_path):
    model = make_model(labels=None, classifier_activation="softmax")
    options = {"top": 99, "signatures": ("serving_default", "images"), "check": False}
    served = tf.saved_model.load(str(export(model, tmp_path, **options))).signatures
    image = draw(2, (24, 32))
    answer = served["serving_default"](tf.constant([encode(image)]))
    expected = model.predict(model_input(image)[None], verbose=0)[0]
    order = np.argsort(-expected)
    assert [name.decode() for name in answer["classes"].numpy()[0]] == [f"class_{index}" for index in order]
    np.testing.assert_allclose(answer["scores"].numpy()[0], expected[order], rtol=1e-4)
    assert answer["scores"].numpy().sum() == pytest.approx(1.0, abs=1e-5)
    scores = served["images"](tf.constant(np.asarray(image)[None], tf.float32))["scores"]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "size"),
    slow_after(
        1,
        [
            ({"preprocessing": keras_vit.Preprocessing(size=40, crop=(24, 32), interpolation="bicubic")}, (90, 300)),
            ({"channels": 1, "preprocessing": keras_vit.Preprocessing(size=(24, 32), mean=0.5, std=0.25)}, (90, 60)),
            ({"distilled": True, "preprocessing": keras_vit.Preprocessing(size=(24, 32))}, (20, 20)),
        ],
    ),
)
def test_it_answers_as_predict_does(tmp_path, changes, size):
    model = make_model(**changes)
    folder = export(model, tmp_path, check=False, top=7, signatures=("serving_default",))
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    files = [encode(draw(seed, size), image_format) for seed, image_format in enumerate(("JPEG", "PNG", "GIF"))]
    answer = served(tf.constant(files))
    for row, pairs in enumerate(keras_vit.predict(model, files, top=7)):
        assert [name.encode() for name, _ in pairs] == answer["classes"].numpy()[row].tolist()
        np.testing.assert_allclose(answer["scores"][row], [score for _, score in pairs], atol=1e-5)


@pytest.mark.slow
def test_bfloat16_has_the_same_signatures(model, exported, served, tmp_path, drawn_files):
    options = {"signatures": ("serving_default", "images"), "check": False}
    folder = export(model, tmp_path, top=3, compute_dtype="bfloat16", **options)
    half = tf.saved_model.load(str(folder)).signatures
    for name, signature in half.items():
        assert signature.structured_input_signature == served[name].structured_input_signature
    files = tf.constant(drawn_files[0])
    scores, full = (
        signature(files)["scores"].numpy() for signature in (half["serving_default"], served["serving_default"])
    )
    assert scores.dtype == "float32" and 1e-6 < np.abs(scores - full).max() < 0.03
    stored = sum(file.stat().st_size for file in (folder / "variables").iterdir())
    assert stored <= 1.02 * sum(weight.nbytes for weight in model.get_weights())
    assert any(node.op == "MatMul" and node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in _nodes(half))
    assert not any(
        node.op == "MatMul" and node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in _nodes(served)
    )


def _nodes(signatures):
    for signature in signatures.values():
        for function in signature.graph.as_graph_def().library.function:
            yield from function.node_def


@pytest.mark.slow
def test_compiled_by_xla(model, tmp_path, served, drawn_files):
    folder = export(model, tmp_path, top=3, jit_compile=True, signatures=("serving_default",), check=False)
    compiled = tf.saved_model.load(str(folder)).signatures["serving_default"]
    files = tf.constant(drawn_files[0])
    np.testing.assert_allclose(compiled(files)["scores"], served["serving_default"](files)["scores"], atol=1e-5)
    functions = compiled.graph.as_graph_def().library.function
    assert any(function.attr["_XlaMustCompile"].b for function in functions)


@pytest.mark.slow
def test_export_under_a_strategy(tmp_path, drawn_files):
    """A model whose variables have a copy per device."""
    script = f"""
import pathlib, sys
import tensorflow as tf
sys.path.insert(0, {str(pathlib.Path(__file__).parents[1])!r})
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras_vit
from served import make_model
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = make_model()
keras_vit.export(model, {str(tmp_path)!r}, signatures=("serving_default",))
"""
    root = str(pathlib.Path(keras_vit.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "top-1 the same for 8 of 8 images" in done.stderr
    stored = sum(file.stat().st_size for file in (tmp_path / "1" / "variables").iterdir())
    assert stored <= 1.02 * sum(weight.nbytes for weight in make_model().get_weights())


@pytest.fixture(scope="module")
def requests(exported):
    """The requests of the warm-up file, as TensorFlow Serving reads them."""
    records = tf.data.TFRecordDataset(str(exported / "assets.extra" / "tf_serving_warmup_requests"))
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    assert all(log.WhichOneof("log_type") == "predict_log" for log in logs)
    return [log.predict_log.request for log in logs]


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """What a server does with a request: the inputs to the signature, its outputs back."""

    def __init__(self, signatures):
        self.signatures = signatures

    def Predict(self, request, context):
        inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        for name, tensor in self.signatures[request.model_spec.signature_name](**inputs).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor))
        return response


@pytest.fixture(scope="module")
def port(served):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(served), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield port
    server.stop(None).wait()


def test_there_is_a_warm_up_request_per_signature(exported, served, requests):
    assert {request.model_spec.name for request in requests} == {"toy"}
    assert [request.model_spec.signature_name for request in requests] == list(served)
    assert (exported / "assets.extra" / "tf_serving_warmup_requests").stat().st_size < 500_000


@pytest.mark.slow
def test_warm_up_requests_run_through_a_service(port, requests):
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for request in requests:
            outputs = {
                name: tf.make_ndarray(value) for name, value in stub.Predict(request, timeout=60).outputs.items()
            }
            assert {len(value) for value in outputs.values()} == {1}
            if "error" in outputs:
                assert outputs["error"].tolist() == [b""]
            if "scores" in outputs:
                assert outputs["scores"].max() > 1 / 7


def test_the_call_of_the_instructions(exported, served, port, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.jpg").write_bytes(encode(draw(5), "JPEG"))
    source = _source((exported / "README.txt").read_text())
    assert "localhost:8500" in source
    exec(source.replace("localhost:8500", f"localhost:{port}"), {})
    scores = served["serving_default"](tf.constant([(tmp_path / "cat.jpg").read_bytes()]))["scores"]
    assert f"{np.asarray(scores)[0, 0]:.5f}"[:6] in capsys.readouterr().out


@pytest.mark.parametrize("signature", [pytest.param("images", marks=pytest.mark.slow), "images_uint8"])
def test_the_call_of_the_instructions_without_files(tmp_path, capsys, signature):
    model = make_model()
    model.name = "it's $(mine)"
    folder = export(model, tmp_path, signatures=(signature,), check=False)
    text = (folder / "README.txt").read_text()
    assert "--model_name=it_s___mine_ " in text and "/models/it_s___mine_:predict" in text
    server = grpc.server(futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Service(tf.saved_model.load(str(folder)).signatures), server
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    exec(_source(text).replace("localhost:8500", f"localhost:{port}"), {})
    assert "logits" in capsys.readouterr().out
    server.stop(None).wait()


def _source(text):
    """The Python of the instructions."""
    return re.search(r"^  import pathlib\n(.*\n)*", text, re.MULTILINE)[0].replace("\n  ", "\n").removeprefix("  ")
