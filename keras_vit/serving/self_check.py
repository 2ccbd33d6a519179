"""An export proves itself: run in a fresh process on images, and compared with the model in memory."""

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

# What is computed in -> the largest difference that an output may have, as a share of its largest number or of 1. The
# rounding of bfloat16 and int8 depends on the model: these limits find what is broken, not what is a little worse.
TOLERANCES = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1, "int8": 0.25}
_BATCH = 8
_SCRIPT = pathlib.Path(__file__).with_name("fresh_process.py")


class ExportError(RuntimeError):
    """An export that does not answer as the model does; nothing of it is kept."""


@dataclasses.dataclass(frozen=True)
class Check:
    """What a comparison found.

    Attributes:
        differences: dict from the name of an output to its largest difference, as a share of its largest number or 1.
        agreement: images whose likeliest class is the same; None where no output tells.
        count: images that were compared.
        tolerance: the largest difference allowed.
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
    """Run the export in `folder` in a fresh process and compares its answers with those of `model`.

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
        ExportError: if the process fails, the export does not read an image, or an answer differs by more than the
            tolerance.
    """
    inputs = _inputs(model, runtime, files, pixels)
    given, description = _run(folder, runtime, inputs)
    differences, top = _compare(model, pixels, given)
    check = Check(differences, top, len(files), tolerance, description["inputs"], description["outputs"])
    if not max(differences.values()) <= tolerance:
        raise ExportError(
            f"the exported model must answer as the model in memory does; found: {check}. Where that is near enough, "
            "give a larger tolerance, or compare on images of your own (check)"
        )
    return check


def resized(model, pixels):
    """Float32 images (count, *image_size, channels) on [0, 255], resized and cropped as the model wants them."""
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
        # -P: no folder of this package on the search path
        command = [sys.executable, "-P", str(_SCRIPT), runtime, str(folder), taken, given]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}  # this process may have taken all of a GPU's memory
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, errors="replace")
        if done.returncode:
            raise ExportError(
                "the exported model must run in a fresh process; "
                f"it ended with {done.returncode}: {done.stderr[-2000:]}"
            )
        with np.load(given, allow_pickle=False) as arrays:
            return dict(arrays), json.loads(done.stdout.splitlines()[-1])


def _compare(model, pixels, given):
    """Dict of differences, and how many images have the same likeliest class (None if no output tells)."""
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
                raise ExportError(f"the exported model must read what it is checked on; it answers {str(errors[0])!r}")
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
    """What the model in memory gives: its class scores and what else is named, as float32 arrays."""
    outputs = output_model(model, [class_scores(model), *sorted(names & {"features", "tokens", "attention"})])
    batches = []
    for start in range(0, len(pixels), _BATCH):
        with tf.device("CPU"):  # a GPU may multiply in fewer bits
            inputs = ops.standardise(model.preprocessing, resized(model, pixels[start : start + _BATCH]))
            answers = outputs(np.asarray(inputs), training=False).items()
        batches.append({name: keras.ops.convert_to_numpy(value).astype("float32") for name, value in answers})
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _difference(values, expected):
    if values.shape != expected.shape or not np.isfinite(values).all():
        return float("inf")
    return float(np.abs(values - expected).max() / max(1.0, np.abs(expected).max()))
