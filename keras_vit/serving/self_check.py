"""The check of an export: run it in a fresh process and compare its outputs with the model in memory."""

import io
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import PIL.Image
import tensorflow as tf

from keras_vit.data import preprocessing as preparation
from keras_vit.evaluation.outputs import logit_names, probabilities
from keras_vit.models import TaskModel
from keras_vit.serving.signatures import class_scores, output_model
from keras_vit.serving.tasks import example_arrays, expected_outputs

# Dtype -> maximum difference of an output, relative to the larger of 1 and its maximum. The rounding errors of bfloat16
# and int8 depend on the model, so these limits detect defects rather than small losses of precision.
TOLERANCES = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1, "int8": 0.25}
_OF_LABELS = 0.1  # weight of labels that differ, as rounding decides between equal scores: 1e-4 allows one in 1000
_BATCH = 8
_SCRIPT = pathlib.Path(__file__).with_name("fresh_process.py")
_SAMPLES = (("JPEG", (240, 320)), ("PNG", (224, 224)), ("JPEG", (400, 200)), ("BMP", (97, 131)))  # height, width


class ExportError(RuntimeError):
    """Report an export that fails or differs from the model; the export is removed."""


def sample_files(count, max_pixels=None):
    """Return `count` encoded images (bytes) of at most `max_pixels`, smooth colours, the same for every call."""
    files = []
    for seed in range(count):
        image_format, size = _SAMPLES[seed % len(_SAMPLES)]
        shrunk = 1.0 if max_pixels is None else min(1.0, math.sqrt(max_pixels / math.prod(size)))
        height, width = (max(1, int(shrunk * side)) for side in size)
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
        stream = io.BytesIO()
        PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BICUBIC).save(stream, image_format)
        files.append(stream.getvalue())
    return files


def self_check(model, folder, format, files, pixels, tolerance):
    """Run the export in `folder` in a fresh process and compare its outputs with those of `model`.

    Args:
        model: the model in memory, on any backend.
        folder: `pathlib.Path` of the export.
        format: name of the format.
        files: list of encoded images (bytes).
        pixels: list of the same images, decoded: uint8 (height, width, channels).
        tolerance: maximum difference of an output, relative to the larger of 1 and its maximum.

    Returns:
        Dict for the model card: `inputs` and `outputs` of the export, and the `check`.

    Raises:
        ExportError: if the process fails, the export cannot read an image, or an output differs by more than the
            tolerance.
    """
    is_task = isinstance(model, TaskModel)
    is_fixed = model.preprocessing.max_tokens or not is_task and None not in model.input_shape[1:]
    if is_task:
        arrays = (example_arrays(model, image).items() for image in pixels)
        inputs = {f"{name}_{number}": array for number, row in enumerate(arrays) for name, array in row}
    else:
        inputs = {} if format == "saved_model" and is_fixed else {"images": resized(model, pixels)}
    if format == "saved_model":
        inputs |= {f"file_{index}": np.frombuffer(file, np.uint8) for index, file in enumerate(files)}
        inputs |= {f"pixels_{index}": image for index, image in enumerate(pixels)}
    with tempfile.TemporaryDirectory() as place:
        taken, given = (os.path.join(place, name) for name in ("inputs.npz", "outputs.npz"))
        np.savez(taken, **inputs)
        # -P: keep the folder of this package off the search path
        words = ["-P", str(_SCRIPT), format, str(folder), taken, given]
        said = run_python(words, "the exported model must run in a fresh process")
        with np.load(given, allow_pickle=False) as arrays:
            differences, same = _compare(model, pixels, dict(arrays), format)
    check = {
        "largest_differences": differences,
        "tolerance": tolerance,
        "of": "the larger of 1 and the largest absolute output of the model",
        "images": len(files),
        "same_top1": same,
    }
    if not max(differences.values()) <= tolerance:
        raise ExportError(
            f"the exported model must return the same as the model in memory; found: {summary(check)}. If that is "
            "close enough, pass a larger tolerance, or compare on images of your own (check)"
        )
    return {**json.loads(said.splitlines()[-1]), "check": check}


def summary(check):
    """Return the result of a check, see `self_check`, in a few words."""
    worst, difference = max(check["largest_differences"].items(), key=lambda item: item[1])
    same = f", top-1 the same for {check['same_top1']} of {check['images']} images"
    return (
        f"largest difference {difference:.2g} ({worst}; at most {check['tolerance']:g} is allowed)"
        f"{'' if check['same_top1'] is None else same}"
    )


def run_python(words, expectation, **environment):
    """Run Python with these arguments on the CPU in a process of its own and return its standard output.

    Raises:
        ExportError: if it fails; `expectation` begins the message.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **environment}  # this process may use all GPU memory
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode:
        raise ExportError(f"{expectation}; it ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def resized(model, pixels):
    """Return float32 images (count, *image_size, channels) on [0, 255], resized and cropped for the model."""
    with tf.device("CPU"):
        return np.stack([np.asarray(preparation.resize(model.preprocessing, image)) for image in pixels])


def graph_inputs(model, image):
    """Return the inputs of a graph in ONNX or OpenVINO by name, for an image, uint8 (height, width, channels)."""
    return example_arrays(model, image) if isinstance(model, TaskModel) else {"images": resized(model, [image])}


def _compare(model, pixels, given, format):
    """Return a dict of differences, and the number of images with the same top-1 class (None if no output shows it)."""
    if isinstance(model, TaskModel):
        expected = expected_outputs(model, pixels, format)
        return {name: _difference(given[name], x) for name, x in expected.items()}, None
    expected = _expected(model, pixels, {name.rpartition("/")[2] for name in given})
    classes = expected[class_scores(model)]
    differences, agreements = {}, []
    for name, values in given.items():
        signature, _, output = name.rpartition("/")
        if output == "classes":
            agreements.append(values[:, 0] == np.array(logit_names(model))[classes.argmax(-1)])
        elif output == "error":
            errors = [error for error in values if error]
            if errors:
                raise ExportError(f"the exported model must read the check images; it returned {str(errors[0])!r}")
        elif (signature, output) == ("serving_default", "scores"):
            best = -np.sort(-probabilities(model, classes), axis=-1)[:, : values.shape[1]]
            differences[name] = _difference(values, best)
        elif output in ("logits", "scores"):
            differences[name] = _difference(values, classes)
            agreements.append(values.argmax(-1) == classes.argmax(-1))
        else:
            differences[name] = _difference(values, expected[output])
    return differences, int(np.logical_and.reduce(agreements).sum()) if agreements else None


def _expected(model, pixels, names):
    """Return the outputs of the model in memory: class scores and the other outputs in `names`, as float32 arrays."""
    outputs = output_model(model, [class_scores(model), *sorted(names & {"features", "tokens", "attention"})])
    batches = []
    for start in range(0, len(pixels), _BATCH):
        with tf.device("CPU"):  # a GPU may multiply with lower precision
            inputs = [
                np.asarray(preparation.apply(model.preprocessing, image)) for image in pixels[start : start + _BATCH]
            ]
            inputs = tf.nest.map_structure(np.asarray, preparation.as_inputs(model.preprocessing, np.stack(inputs)))
            answers = outputs(inputs, training=False).items()
        batches.append({name: keras.ops.convert_to_numpy(value).astype("float32") for name, value in answers})
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _difference(values, expected):
    """Return the largest difference, or, of integers, a tenth of the share of those that differ."""
    if values.shape != expected.shape or not np.isfinite(values).all():
        return float("inf")
    if values.dtype.kind == "i":
        return float((values != expected).mean()) * _OF_LABELS
    return float(np.abs(values - expected).max() / max(1.0, np.abs(expected).max()))
