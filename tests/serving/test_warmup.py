"""Warm-up requests are what TensorFlow Serving's own messages say, and run through its service as they are."""

import re
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf
from drawn import draw, encode
from served import make_model
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2, prediction_service_pb2_grpc

from keras_vit.serving import export


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(make_model(), tmp_path_factory.mktemp("export"), check=False)


@pytest.fixture(scope="module")
def requests(folder):
    """The requests of the warm-up file, as TensorFlow Serving reads them."""
    records = tf.data.TFRecordDataset(str(folder / "assets.extra" / "tf_serving_warmup_requests"))
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
def signatures(folder):
    return tf.saved_model.load(str(folder)).signatures


@pytest.fixture(scope="module")
def port(signatures):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(signatures), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield port
    server.stop(None).wait()


def test_there_is_a_request_per_signature(folder, signatures, requests):
    assert {request.model_spec.name for request in requests} == {"toy"}
    assert [request.model_spec.signature_name for request in requests] == list(signatures)
    assert (folder / "assets.extra" / "tf_serving_warmup_requests").stat().st_size < 500_000


def test_they_run_through_a_service(port, requests):
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


def test_the_call_of_the_instructions(folder, signatures, port, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.jpg").write_bytes(encode(draw(5), "JPEG"))
    text = (folder / "README.txt").read_text()
    source = _source(text)
    assert "localhost:8500" in source
    exec(source.replace("localhost:8500", f"localhost:{port}"), {})
    scores = signatures["serving_default"](tf.constant([(tmp_path / "cat.jpg").read_bytes()]))["scores"]
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
