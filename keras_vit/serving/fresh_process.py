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
    call, *described = RUNTIMES[format](folder)
    taken, given = ([_described(*tensor) for tensor in tensors] for tensors in described)
    is_task, names = "images" not in inputs, [tensor["name"] for tensor in taken]
    if is_task:
        count = sum(name.startswith("images_") for name in inputs)
        batches = [{name: inputs[f"{name}_{number}"] for name in names} for number in range(count)]
    else:
        images = inputs["images"]
        batches = [{"images": images[start : start + _BATCH]} for start in range(0, len(images), _BATCH)]
    answers, outputs = [call(batch) for batch in batches], {}
    for name in answers[0]:
        values = [answer[name].ravel() if is_task else answer[name] for answer in answers]
        outputs[f"arrays/{name}" if is_task else name] = np.concatenate(values)
    return outputs, {"inputs": taken, "outputs": given}


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
    """Return a function from arrays by name to outputs by name, and (name, dtype, shape) of the inputs and outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float)": "float32", "tensor(int32)": "int32"}
    tensors = session.get_inputs(), session.get_outputs()
    described = [[(one.name, dtypes.get(one.type, one.type), one.shape) for one in side] for side in tensors]
    names = [name for name, *_ in described[1]]
    return lambda arrays: dict(zip(names, session.run(names, arrays), strict=True)), *described


def _open_litert(folder):
    from ai_edge_litert.interpreter import Interpreter

    call = Interpreter(str(folder / "model.tflite")).get_signature_runner()
    tensors = call.get_input_details(), call.get_output_details()
    return lambda arrays: call(**arrays), *(
        [(name, np.dtype(one["dtype"]).name, one["shape_signature"]) for name, one in side.items()] for side in tensors
    )


def _open_openvino(folder):
    import openvino

    # Without this hint, OpenVINO computes in bfloat16 on processors that support it.
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().read_model(str(folder / "model.xml"))
    described = [
        [(port.any_name, np.dtype(port.element_type.to_dtype()).name, port.partial_shape) for port in side]
        for side in (model.inputs, model.outputs)
    ]
    compiled = openvino.Core().compile_model(model, "CPU", hint)
    names = [name for name, *_ in described[1]]
    return lambda arrays: dict(zip(names, compiled(arrays).values(), strict=True)), *described


def _described(name, dtype, shape):
    """Return a tensor for the model card; dynamic sides, which are not numbers, are None."""
    sides = [int(str(side)) if str(side).isdigit() else None for side in shape]
    return {"name": name, "dtype": dtype, "shape": sides}


def _array(values):
    """Return `values`; strings become a Unicode array, which needs no pickle."""
    if values.dtype != object:
        return values
    return np.array([item.decode() for item in values.ravel()]).reshape(values.shape)


RUNTIMES = {"onnx": _open_onnx, "web": _open_onnx, "litert": _open_litert, "openvino": _open_openvino}

if __name__ == "__main__":
    # Block these imports: an export needs neither, and TensorFlow starts twice as fast without them.
    sys.modules.update(dict.fromkeys(("keras", "jax")))  # type: ignore[arg-type] # None blocks the import
    export_format, model_folder, inputs_file, outputs_file = sys.argv[1:]
    with np.load(inputs_file, allow_pickle=False) as arrays:
        answered, described_model = run(export_format, pathlib.Path(model_folder), dict(arrays))
    np.savez(outputs_file, **answered)
    print(json.dumps(described_model))
