"""The check of an export: run it in a fresh process and compare its outputs with the model in memory."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data import preprocessing as ops
from keras_vit.evaluation.outputs import probabilities
from keras_vit.serving.outputs import class_scores, output_model
from keras_vit.serving.signatures import class_labels

# Dtype -> maximum difference of an output, relative to the larger of 1 and its maximum. The rounding errors of bfloat16
# and int8 depend on the model, so these limits detect defects rather than small losses of precision.
TOLERANCES = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1, "int8": 0.25}
_BATCH = 8
_SCRIPT = pathlib.Path(__file__).with_name("fresh_process.py")


class ExportError(RuntimeError):
    """An export that fails or differs from the model; it is removed."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Result of a comparison.

    Attributes:
        differences: dict from the name of an output to its maximum difference, relative to the larger of 1 and its
            maximum.
        agreement: number of images with the same top-1 class; None if no output shows it.
        count: number of compared images.
        tolerance: maximum allowed difference.
        inputs, outputs: of the exported model: lists of (name, dtype, shape).
    """

    differences: dict
    agreement: int | None
    count: int
    tolerance: float
    inputs: list
    outputs: list

    def __str__(self):
        worst = max(self.differences, key=self.differences.get)
        found = f"largest difference {self.differences[worst]:.2g} ({worst}; at most {self.tolerance:g} is allowed)"
        same = "" if self.agreement is None else f", top-1 the same for {self.agreement} of {self.count} images"
        return f"{found}{same}"


def self_check(model, folder, runtime, files, pixels, tolerance):
    """Run the export in `folder` in a fresh process and compare its outputs with those of `model`.

    Args:
        model: the model in memory, on any backend.
        folder: `pathlib.Path` of the export.
        runtime: a key of `fresh_process.RUNTIMES`.
        files: list of encoded images (bytes).
        pixels: list of the same, decoded: uint8 (height, width, channels).
        tolerance: see `Check`.

    Returns:
        A `Check`.

    Raises:
        ExportError: if the process fails, the export cannot read an image, or an output differs by more than the
            tolerance.
    """
    inputs = _inputs(model, runtime, files, pixels)
    given, description = _run(folder, runtime, inputs)
    differences, top = _compare(model, pixels, given)
    check = Check(differences, top, len(files), tolerance, description["inputs"], description["outputs"])
    if not max(differences.values()) <= tolerance:
        raise ExportError(
            f"the exported model must return the same as the model in memory; found: {check}. If that is close enough, "
            "pass a larger tolerance, or compare on images of your own (check)"
        )
    return check


def resized(model, pixels):
    """Return float32 images (count, *image_size, channels) on [0, 255], resized and cropped for the model."""
    with tf.device("CPU"):
        return np.stack([np.asarray(ops.resize(model.preprocessing, image)) for image in pixels])


def _inputs(model, runtime, files, pixels):
    if runtime != "saved_model":
        return {"images": resized(model, pixels)}
    inputs = {"bytes": np.frombuffer(b"".join(files), np.uint8), "lengths": np.array([len(file) for file in files])}
    return {**inputs, **{f"pixels_{index}": image for index, image in enumerate(pixels)}}


def _run(folder, runtime, inputs):
    with tempfile.TemporaryDirectory() as place:
        taken, given = (os.path.join(place, name) for name in ("inputs.npz", "outputs.npz"))
        np.savez(taken, **inputs)
        # -P: keep the folder of this package off the search path
        command = [sys.executable, "-P", str(_SCRIPT), runtime, str(folder), taken, given]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}  # this process may use all memory of the GPU
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, errors="replace")
        if done.returncode:
            raise ExportError(
                "the exported model must run in a fresh process; "
                f"it ended with {done.returncode}: {done.stderr[-2000:]}"
            )
        with np.load(given, allow_pickle=False) as arrays:
            return dict(arrays), json.loads(done.stdout.splitlines()[-1])


def _compare(model, pixels, given):
    """Return a dict of differences, and the number of images with the same top-1 class (None if no output shows it)."""
    expected = _expected(model, pixels, {name.rpartition("/")[2] for name in given})
    classes = expected[class_scores(model)]
    differences, agreements = {}, []
    for name, values in given.items():
        signature, _, output = name.rpartition("/")
        if output == "classes":
            agreements.append(values[:, 0] == np.array(class_labels(model))[classes.argmax(-1)])
        elif output == "error":
            errors = [error for error in values if error]
            if errors:
                raise ExportError(f"the exported model must read the check images; it returned {str(errors[0])!r}")
        elif signature == "serving_default":
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
            inputs = ops.standardise(model.preprocessing, resized(model, pixels[start : start + _BATCH]))
            answers = outputs(np.asarray(inputs), training=False).items()
        batches.append({name: keras.ops.convert_to_numpy(value).astype("float32") for name, value in answers})
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _difference(values, expected):
    if values.shape != expected.shape or not np.isfinite(values).all():
        return float("inf")
    return float(np.abs(values - expected).max() / max(1.0, np.abs(expected).max()))
