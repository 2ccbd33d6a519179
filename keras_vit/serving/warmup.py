"""Warm-up requests of TensorFlow Serving: it runs them before it accepts others, so that the first is not slow.

The file is a TFRecord of `tensorflow.serving.PredictionLog`. Its messages are described here field by field (the part
of `tensorflow_serving/apis/prediction_log.proto`, `predict.proto` and `model.proto` that a request needs), so that an
export needs no package in addition to TensorFlow; the test reads the file with that package.
"""

import pathlib

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2

_PACKAGE = "keras_vit.serving.warmup"
# message -> its fields: name, number, type; `map` is a map from string to tensor
_MESSAGES = {
    "ModelSpec": (("name", 1, "string"), ("signature_name", 3, "string")),
    "PredictRequest": (("model_spec", 1, "ModelSpec"), ("inputs", 2, "map")),
    "PredictLog": (("request", 1, "PredictRequest"),),
    "PredictionLog": (("predict_log", 6, "PredictLog"),),
}


def write_warmup(folder, model_name, requests):
    """Write `assets.extra/tf_serving_warmup_requests` into a SavedModel folder.

    Args:
        folder: the SavedModel.
        model_name: name of the model on the server.
        requests: dict from the name of a signature to the dict of its inputs, tensors or values to convert.
    """
    path = pathlib.Path(folder) / "assets.extra" / "tf_serving_warmup_requests"
    path.parent.mkdir()
    log = _message_class("PredictionLog")
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in requests.items():
            record = log()
            request = record.predict_log.request
            request.model_spec.name, request.model_spec.signature_name = model_name, signature
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            writer.write(record.SerializeToString())


def _message_class(name):
    pool = descriptor_pool.Default()
    try:
        described = pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    except KeyError:
        pool.AddSerializedFile(_file().SerializeToString())
        described = pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    return message_factory.GetMessageClass(described)


def _file():
    tensor = tensor_pb2.TensorProto.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    file.dependency.append(tensor.file.name)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            _add_field(message, field, number, kind, tensor.full_name)
    return file


def _add_field(message, name, number, kind, tensor):
    types = descriptor_pb2.FieldDescriptorProto
    if kind == "string":
        message.field.add(name=name, number=number, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL)
        return
    label = types.LABEL_REPEATED if kind == "map" else types.LABEL_OPTIONAL
    of = f"{message.name}.{name.title()}Entry" if kind == "map" else kind
    message.field.add(name=name, number=number, type=types.TYPE_MESSAGE, label=label, type_name=f".{_PACKAGE}.{of}")
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL)
        entry.field.add(
            name="value", number=2, type=types.TYPE_MESSAGE, label=types.LABEL_OPTIONAL, type_name=f".{tensor}"
        )
