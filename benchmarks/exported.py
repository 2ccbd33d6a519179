"""The work of contenders that run an exported ViT-B/16 of this package or of another library in a runtime."""

import pathlib

import numpy as np

from benchmarks import contenders

# Without these hints, OpenVINO computes in bfloat16 on processors that support it.
HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}


def write(folder, package, form, quantization=None):
    """Return a function that writes the model of a package to `folder`."""
    return lambda: contenders.quietly(_WRITERS[package], pathlib.Path(folder), form, quantization)


def _write_keras_vit(folder, form, quantization):
    import keras_vit

    options = {"compute_dtype": "bfloat16"} if form == "saved_model_bfloat16" else {}
    if quantization:
        options["quantization"] = quantization
        if form != "litert":
            options["calibration"] = [np.uint8(127.5 * image + 127.5) for image in contenders.random_images(8)[0]]
    model = keras_vit.ViT_B16()
    form = "saved_model" if form.startswith("saved_model") else form
    keras_vit.export(model, folder, form, version=1, check=False, force=True, **options)


def _write_keras_hub(folder, form, quantization):
    model = contenders.keras_hub("float32")
    model(np.zeros((1, contenders.SIZE, contenders.SIZE, 3), "float32"))
    (folder / "1").mkdir(parents=True)
    model.export(str(folder / "1" / "model.xml"), format="openvino", verbose=False)
    if quantization:
        _quantize(folder, contenders.random_images(8)[0])


def _write_transformers(folder, form, quantization):
    import openvino
    import torch

    images = contenders.random_images(8)[0].transpose(0, 3, 1, 2)
    graph = openvino.convert_model(contenders.transformers_model().eval(), example_input=torch.from_numpy(images[:1]))
    (folder / "1").mkdir(parents=True)
    openvino.save_model(graph, folder / "1" / "model.xml", compress_to_fp16=False)
    if quantization:
        _quantize(folder, images)


def _quantize(folder, images):
    """Quantise `model.xml` to int8 with NNCF's settings for transformers."""
    import nncf
    import openvino

    graph = openvino.Core().read_model(folder / "1" / "model.xml")
    data = nncf.Dataset(list(images[:, None]))
    graph = nncf.quantize(graph, data, subset_size=len(images), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(graph, folder / "1" / "int8.xml", compress_to_fp16=False)


_WRITERS = {
    "keras_vit": _write_keras_vit,
    "keras-hub": _write_keras_hub,
    "transformers (torch)": _write_transformers,
}


def openvino(folder, precision, batch, is_channels_first=False):
    images, run = _images(batch, is_channels_first), openvino_runner(folder, precision)
    return lambda: run(images)


def openvino_runner(folder, precision):
    """Return a function of images that runs `int8.xml` if it exists, otherwise `model.xml`."""
    import openvino

    folder = pathlib.Path(folder) / "1"
    file = folder / "int8.xml" if (folder / "int8.xml").exists() else folder / "model.xml"
    settings = {"INFERENCE_PRECISION_HINT": HINTS[precision], "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(str(file), "CPU", settings)
    return lambda images: compiled(images)[0]


def onnx(folder, precision, batch):
    images, run = _images(batch), onnx_runner(folder)
    return lambda: run(images)


def onnx_runner(folder):
    """Return a function of images that runs `model.onnx`."""
    import onnxruntime

    file = pathlib.Path(folder) / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def litert(folder, precision, batch):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(pathlib.Path(folder) / "1" / "model.tflite"), num_threads=contenders.cores())
    index, images = interpreter.get_input_details()[0]["index"], _images(batch)
    interpreter.resize_tensor_input(index, images.shape)
    interpreter.allocate_tensors()

    def run():
        interpreter.set_tensor(index, images)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return run


def saved_model(folder, precision, batch):
    """Return a function that calls `images_uint8` with images of the model's size, so that nothing is resized."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(pathlib.Path(folder) / "1"))
    images = tf.constant(_images(batch).astype("uint8"))
    signature = loaded.signatures["images_uint8"]
    return lambda: signature(images=images)["logits"].numpy()


def _images(batch, is_channels_first=False):
    images = 127.5 * contenders.random_images(batch)[0] + 127.5
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)) if is_channels_first else images
