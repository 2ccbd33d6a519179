"""Export a model of another backend in a process that runs TensorFlow.

A TensorFlow graph converted from JAX is locked to the platform it was lowered for. The same layers on the TensorFlow
backend give a portable graph.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np

from keras_vit.models import clone

_MODEL, _OPTIONS, _ARRAYS = "model.keras", "options.json", "arrays.npz"


def write_in_tensorflow(model, folder, format, options):
    """Write `model` into `folder` in another process, as the writer of `format` does.

    Raises:
        RuntimeError: if that process fails, for example because it does not know a layer of a stem.
    """
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        clone(model).save(place / _MODEL)  # without optimizer
        arrays = {name: value for name, value in options.items() if isinstance(value, np.ndarray)}
        np.savez(place / _ARRAYS, **arrays)
        values = {name: value for name, value in options.items() if name not in arrays}
        (place / _OPTIONS).write_text(json.dumps({"format": format, "folder": str(folder), "options": values}))
        package = str(pathlib.Path(__file__).parents[2])
        search_path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": search_path}
        environment["CUDA_VISIBLE_DEVICES"] = "-1"  # this process may use all memory of the GPU
        command = [sys.executable, "-m", __name__, str(place)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode:
        raise RuntimeError(
            f"the model must load on the TensorFlow backend to be exported; that process ended with {done.returncode}: "
            f"{done.stderr[-2000:]}"
        )


def _main(place):
    from keras_vit.serving.formats import FORMATS

    place = pathlib.Path(place)
    job = json.loads((place / _OPTIONS).read_text())
    with np.load(place / _ARRAYS, allow_pickle=False) as arrays:
        options = {**job["options"], **dict(arrays)}
    FORMATS[job["format"]].write(keras.models.load_model(place / _MODEL), pathlib.Path(job["folder"]), **options)


if __name__ == "__main__":
    _main(sys.argv[1])
