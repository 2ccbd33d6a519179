"""Run an exported model with only its runtime: python -P fresh_process.py RUNTIME FOLDER INPUTS OUTPUTS.

INPUTS and OUTPUTS are `.npz` files. The last line of standard output is JSON with the model's inputs and outputs.
The file runs on its own, so that this package is not imported.
"""

import json
import pathlib
import sys

import numpy as np

_BATCH = 3  # of 8 images: the second call has the same size, the third another one


def run_saved_model(folder, inputs):
    """Call every signature: with files in batches, with pixels one at a time, because their sizes differ."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    files = np.split(inputs["bytes"], np.cumsum(inputs["lengths"])[:-1])
    files = [file.tobytes() for file in files]
    batches = [tf.constant(files[start : start + _BATCH]) for start in range(0, len(files), _BATCH)]
    pixels = [inputs[f"pixels_{index}"][None] for index in range(len(files))]
    outputs, description = {}, {"inputs": [], "outputs": []}
    for name, signature in loaded.signatures.items():
        ((key, spec),) = signature.structured_input_signature[1].items()
        calls = batches if spec.dtype == tf.string else [tf.cast(image, spec.dtype) for image in pixels]
        answers = [signature(**{key: call}) for call in calls]
        for output in answers[0]:
            outputs[f"{name}/{output}"] = _array(np.concatenate([answer[output].numpy() for answer in answers]))
        description["inputs"].append([f"{name}/{key}", spec.dtype.name, spec.shape.as_list()])
        for output, spec in signature.structured_outputs.items():
            description["outputs"].append([f"{name}/{output}", spec.dtype.name, spec.shape.as_list()])
    return outputs, description


def run_onnx(folder, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    logits = [session.run([given.name], {taken.name: batch})[0] for batch in _batches(inputs)]
    dtypes = {"tensor(float)": "float32"}
    described = [
        [tensor.name, dtypes.get(tensor.type, tensor.type), [_side(side) for side in tensor.shape]]
        for tensor in (taken, given)
    ]
    return {"logits": np.concatenate(logits)}, {"inputs": described[:1], "outputs": described[1:]}


def run_litert(folder, inputs):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(folder / "model.tflite"))
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()
    logits = []
    for batch in _batches(inputs):
        interpreter.resize_tensor_input(taken["index"], batch.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(taken["index"], batch)
        interpreter.invoke()
        logits.append(interpreter.get_tensor(given["index"]))
    described = [[d["name"], np.dtype(d["dtype"]).name, d["shape_signature"].tolist()] for d in (taken, given)]
    return {"logits": np.concatenate(logits)}, {"inputs": described[:1], "outputs": described[1:]}


def run_openvino(folder, inputs):
    import openvino

    # Without this hint, OpenVINO computes in bfloat16 on processors that support it.
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(folder / "model.xml"), "CPU", hint)
    (taken,), (given,) = compiled.inputs, compiled.outputs
    logits = [compiled(batch)[given] for batch in _batches(inputs)]
    described = [
        [port.any_name, np.dtype(port.element_type.to_dtype()).name, [_side(str(side)) for side in port.partial_shape]]
        for port in (taken, given)
    ]
    return {"logits": np.concatenate(logits)}, {"inputs": described[:1], "outputs": described[1:]}


def _batches(inputs):
    images = inputs["images"]
    return [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]


def _side(side):
    """Return an integer, or None for a dynamic size."""
    return int(side) if str(side).isdigit() else None


def _array(values):
    """Return `values`; strings become a Unicode array, which needs no pickle."""
    if values.dtype != object:
        return values
    return np.array([item.decode() for item in values.ravel()]).reshape(values.shape)


RUNTIMES = {"saved_model": run_saved_model, "onnx": run_onnx, "litert": run_litert, "openvino": run_openvino}

if __name__ == "__main__":
    # Block these imports: an export needs neither, and TensorFlow starts twice as fast without them.
    sys.modules.update(dict.fromkeys(("keras", "jax")))  # type: ignore[arg-type] # None blocks the import
    runtime, model_folder, inputs_file, outputs_file = sys.argv[1:]
    with np.load(inputs_file, allow_pickle=False) as arrays:
        answered, described_model = RUNTIMES[runtime](pathlib.Path(model_folder), dict(arrays))
    np.savez(outputs_file, **answered)
    print(json.dumps(described_model))
