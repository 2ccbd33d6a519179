"""README.txt of an exported SavedModel: the commands that serve this model, and a call of each signature."""

import re

_MEANINGS = {
    "serving_default": "The best classes and their scores, best first; assets/labels.txt lists all classes.",
    "images": "Pixels of any size, values 0 to 255; one number per class, in the order of assets/labels.txt.",
    "images_uint8": "The same for uint8 pixels.",
    "features": "The input of the classification head.",
    "attention": "Attention rollout: the contribution of each patch, by rows and columns.",
}
_BYTES = """\
image_bytes contains complete files: JPEG, PNG, BMP, the first frame of a GIF, or WebP that is not animated. An image
with more than {max_pixels:,} pixels in its header, or a third as many in a progressive JPEG, is rejected before it is
decoded."""
_ERRORS = {
    "row": "For an unreadable image, the outputs are zeros, empty classes and the reason in error. The other images\n"
    "of its batch are not affected; their error is empty.",
    "raise": "An unreadable image fails its request.",
}
_SERVE = """\
To serve the model, run this in the folder that contains this version folder:

  docker run -p 8500:8500 -p 8501:8501 -v "$PWD:/models/{name}" -e MODEL_NAME={name} tensorflow/serving

or, if the server is installed:

  tensorflow_model_server --port=8500 --rest_api_port=8501 --model_name={name} --model_base_path="$PWD"
"""
_REST_BYTES = """\
  echo '{{"signature_name": "{signature}", "instances": [{{"image_bytes": {{"b64": "'$(base64 -w0 cat.jpg)'"}}}}]}}' |
    curl -d @- http://localhost:8501/v1/models/{name}:predict
"""
_REST_PIXELS = """\
  echo '{{"signature_name": "{signature}", "instances": [[[{pixel}, {pixel}], [{pixel}, {pixel}]]]}}' |
    curl -d @- http://localhost:8501/v1/models/{name}:predict
"""
_GRPC = """\
With gRPC (pip install tensorflow-serving-api):

  import pathlib

  import grpc
  import tensorflow as tf
  from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

  request = predict_pb2.PredictRequest()
  request.model_spec.name, request.model_spec.signature_name = "{name}", "{signature}"
  request.inputs["{key}"].CopyFrom(tf.make_tensor_proto({value}, tf.{dtype}))
  channel = grpc.insecure_channel("localhost:8500")
  answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
  print({{name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}})
"""


def server_name(name):
    """Return a model's name in a form that is valid in paths, addresses and command lines."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def instructions(name, functions, *, on_error, max_pixels):
    """Return the text of README.txt.

    Args:
        name: of the model on the server, see `server_name`.
        functions: dict from the name of a signature to its concrete function.
        on_error, max_pixels: options of the export.
    """
    takes_bytes = {signature: "image_bytes" in _inputs(function) for signature, function in functions.items()}
    parts = [f"{name}: a SavedModel for TensorFlow Serving. It does not need keras_vit.\n", "Signatures:\n"]
    parts += [_signature(signature, function) for signature, function in functions.items()]
    if any(takes_bytes.values()):
        parts += [_BYTES.format(max_pixels=max_pixels), _ERRORS[on_error], ""]
    parts += [_SERVE.format(name=name), "With REST:\n"]
    for signature, function in functions.items():
        template = _REST_BYTES if takes_bytes[signature] else _REST_PIXELS
        parts.append(template.format(name=name, signature=signature, pixel=_pixel(function)))
    first = next((signature for signature, answers in takes_bytes.items() if answers), next(iter(functions)))
    ((key, spec),) = _inputs(functions[first]).items()
    value = '[pathlib.Path("cat.jpg").read_bytes()]' if takes_bytes[first] else f"[[[{_pixel(functions[first])}]]]"
    parts.append(_GRPC.format(name=name, signature=first, key=key, value=value, dtype=spec.dtype.name))
    return "\n".join(parts)


def _signature(name, function):
    lines = [f"  {name}: {_MEANINGS[name]}"]
    for arrow, specs in (("<-", _inputs(function)), ("->", function.structured_outputs)):
        lines += [f"    {arrow} {key}: {spec.dtype.name} {_shape(spec.shape)}" for key, spec in specs.items()]
    return "\n".join(lines) + "\n"


def _inputs(function):
    specs, _ = function.structured_input_signature
    return {spec.name: spec for spec in specs}


def _shape(shape):
    sides = ["batch", *("any" if side is None else str(side) for side in shape[1:])]
    return f"[{', '.join(sides)}]"


def _pixel(function):
    (spec,) = _inputs(function).values()
    return [127] * (spec.shape[-1] if spec.shape.rank == 4 else 0)
