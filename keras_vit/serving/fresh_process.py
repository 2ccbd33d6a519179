"""Run an exported model with only its runtime: python -P fresh_process.py FORMAT FOLDER INPUTS OUTPUTS.

INPUTS and OUTPUTS are `.npz` files. The last line of standard output is JSON with the model's inputs and outputs.
The file runs on its own, so that this package is not imported.
"""

import json
import pathlib
import sys

import numpy as np

_BATCH = 3  # with 8 images, the second batch has the same size, the third another one


def run(format, folder, inputs):
    """Run the export in `folder` on all images, in batches.

    Args:
        format: name of the format, see `keras_vit.export`.
        folder: `pathlib.Path` of the export.
        inputs: dict of arrays: `images`, float32 (images, height, width, channels), for `native` and other formats; for
            a SavedModel also `file_0` and so on, uint8, the encoded images, and `pixels_0` and so on, uint8 (height,
            width, channels); for a task model also `INPUT_0` and so on for each input of its signature `arrays`.

    Returns:
        A dict from the name of an output to its array, of a task model to its values in one row; and the inputs and
        outputs of the exported model: a dict of two lists of {name, dtype, shape}.
    """
    if format == "saved_model":
        return _run_saved_model(folder, inputs)
    call, *described = _RUNTIMES[format](folder)
    images = inputs["images"]
    answers = [call(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH)]
    taken, given = (_described(*tensor) for tensor in described)
    return {given["name"]: np.concatenate(answers)}, {"inputs": [taken], "outputs": [given]}


def _run_saved_model(folder, inputs):
    """Call every signature: with files in batches, with pixels one at a time, because their sizes differ.

    A task model is called with one image at a time, as the sizes of its answers differ.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    files = [array.tobytes() for name, array in inputs.items() if name.startswith("file_")]
    is_task = "arrays" in loaded.signatures
    step = 1 if is_task else _BATCH
    batches = [tf.constant(files[start : start + step]) for start in range(0, len(files), step)]
    pixels = [array[None] for name, array in inputs.items() if name.startswith("pixels_")]
    outputs, description = {}, {"inputs": [], "outputs": []}
    for name, signature in loaded.signatures.items():
        specs = signature.structured_input_signature[1]
        if name == "arrays":
            calls = [{key: tf.constant(inputs[f"{key}_{number}"]) for key in specs} for number in range(len(files))]
        else:
            ((key, spec),) = specs.items()
            calls = batches if spec.dtype == tf.string else [tf.cast(image, spec.dtype) for image in pixels]
            calls = [{key: call} for call in ([tf.constant(inputs["images"])] if name == "native" else calls)]
        answers = [signature(**call) for call in calls]
        description["inputs"] += [_described(f"{name}/{key}", one.dtype.name, one.shape) for key, one in specs.items()]
        for output, spec in signature.structured_outputs.items():
            values = [answer[output].numpy() for answer in answers]
            outputs[f"{name}/{output}"] = _array(np.concatenate([x.ravel() for x in values] if is_task else values))
            description["outputs"].append(_described(f"{name}/{output}", spec.dtype.name, spec.shape))
    return outputs, description


def _open_onnx(folder):
    """Return a function from pixels to logits, and name, dtype and shape of its input and of its output."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    described = [
        (tensor.name, tensor.type.replace("tensor(float)", "float32"), tensor.shape) for tensor in (taken, given)
    ]
    return lambda images: session.run([given.name], {taken.name: images})[0], *described


def _open_litert(folder):
    from ai_edge_litert.interpreter import Interpreter

    call = Interpreter(str(folder / "model.tflite")).get_signature_runner()
    tensors = call.get_input_details() | call.get_output_details()  # one each
    described = [(name, np.dtype(d["dtype"]).name, d["shape_signature"]) for name, d in tensors.items()]
    taken, given = tensors
    return lambda images: call(**{taken: images})[given], *described


def _open_openvino(folder):
    import openvino

    # Without this hint, OpenVINO computes in bfloat16 on processors that support it.
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", hint)
    (taken,), (given,) = compiled.inputs, compiled.outputs
    dtypes = [np.dtype(port.element_type.to_dtype()).name for port in (taken, given)]
    described = [(port.any_name, dtype, port.partial_shape) for port, dtype in zip((taken, given), dtypes, strict=True)]
    return lambda images: compiled(images)[given], *described


def _described(name, dtype, shape):
    """Return a tensor for the model card; dynamic sides, which are not numbers, are None."""
    sides = [int(str(side)) if str(side).isdigit() else None for side in shape]
    return {"name": name, "dtype": dtype, "shape": sides}


def _array(values):
    """Return `values`; strings become a Unicode array, which needs no pickle."""
    if values.dtype != object:
        return values
    return np.array([item.decode() for item in values.ravel()]).reshape(values.shape)


_RUNTIMES = {"onnx": _open_onnx, "litert": _open_litert, "openvino": _open_openvino}

if __name__ == "__main__":
    # Block these imports: an export needs neither, and TensorFlow starts twice as fast without them.
    sys.modules.update(dict.fromkeys(("keras", "jax")))  # type: ignore[arg-type] # None blocks the import
    export_format, model_folder, inputs_file, outputs_file = sys.argv[1:]
    with np.load(inputs_file, allow_pickle=False) as arrays:
        answered, described_model = run(export_format, pathlib.Path(model_folder), dict(arrays))
    np.savez(outputs_file, **answered)
    print(json.dumps(described_model))
