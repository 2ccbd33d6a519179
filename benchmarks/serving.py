"""Compare the export formats: `python -m benchmarks.serving --model M --weights W --folder IMAGES`.

For each format, a row has: the size on disk; how many images get the same class as from the model in memory; how many
get the correct class (by the names of the sub-folders, as in `keras-vit evaluate`); and images per second in batches of
three, in one process. `alone/s` measures only the runtime, on pixels that are already resized. `files/s` starts from
files, which this package decodes and resizes; a SavedModel does that itself. int8 of ONNX and OpenVINO is calibrated on
every second image.
"""

import contextlib
import pathlib
import sys
import tempfile
import time

import numpy as np

import keras_vit
from keras_vit.cli.models import open_model
from keras_vit.cli.parser import parse
from keras_vit.data import images as readers
from keras_vit.evaluation.class_matching import match_classes
from keras_vit.serving import fresh_process
from keras_vit.serving.self_check import resized

# form -> options of keras_vit.export
FORMS = {
    "SavedModel": {"format": "saved_model", "signatures": ("serving_default",)},
    "SavedModel, bfloat16": {"format": "saved_model", "signatures": ("serving_default",), "compute_dtype": "bfloat16"},
    "SavedModel, float16": {"format": "saved_model", "signatures": ("serving_default",), "compute_dtype": "float16"},
    "ONNX": {"format": "onnx"},
    "ONNX, float16": {"format": "onnx", "compute_dtype": "float16"},
    "ONNX, int8": {"format": "onnx", "quantization": "int8"},
    "OpenVINO": {"format": "openvino"},
    "OpenVINO, float16": {"format": "openvino", "compute_dtype": "float16"},
    "OpenVINO, int8": {"format": "openvino", "quantization": "int8"},
    "LiteRT": {"format": "litert"},
    "LiteRT, int8": {"format": "litert", "quantization": "int8"},
}
_WARM = 8  # images of the first run, whose time is subtracted as loading time


def main():
    arguments = parse(["evaluate", *sys.argv[1:]])
    paths = sorted(path for path in pathlib.Path(arguments.folder).glob("*/*") if path.is_file())
    model = open_model(arguments)
    print(f"{'form':<22} {'MB':>6} {'same':>5} {'right':>5} {'of':>5} {'alone/s':>8} {'files/s':>8}")
    for form, row in measure(model, paths):
        alone = "" if row["alone"] is None else f"{row['alone']:.1f}"
        counts = f"{row['same']:>5} {row['right']:>5} {len(paths):>5}"
        print(f"{form:<22} {row['megabytes']:>6.1f} {counts} {alone:>8} {row['files']:>8.1f}", flush=True)


def measure(model, paths, forms=FORMS):
    """Yield (form, row); a row has `megabytes`, `same`, `right`, and `alone` and `files` in images per second."""
    names = [path.parent.name for path in paths]
    classes = sorted(set(names))
    logits, _ = match_classes(tuple(classes), model.labels, model.config.classes)
    labels = np.array(model.labels)
    truth = labels[[logits[classes.index(name)] for name in names]]
    files = [path.read_bytes() for path in paths]
    start = time.perf_counter()
    pixels = resized(model, [np.asarray(read(model.preprocessing.channels)) for read in _read(paths)])
    preparing = (time.perf_counter() - start) / len(paths)
    inputs = keras_vit.preprocess([str(path) for path in paths], model.preprocessing)
    own = labels[model.predict(inputs, verbose=0).argmax(-1)]
    for form in forms:
        options = dict(forms[form])
        if form in ("ONNX, int8", "OpenVINO, int8"):
            options["calibration"] = [str(path) for path in paths[::2]]
        with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
            folder = keras_vit.export(model, place, check=False, **options)
            answers, seconds = _answers(labels, options["format"], folder, files, pixels)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        in_the_graph = options["format"] == "saved_model"
        yield (
            form,
            {
                "megabytes": size / 1e6,
                "same": int((answers == own).sum()),
                "right": int((answers == truth).sum()),
                "alone": None if in_the_graph else 1 / seconds,
                "files": 1 / seconds if in_the_graph else 1 / (seconds + preparing),
            },
        )


def _read(paths):
    return readers.as_images([str(path) for path in paths])


def _answers(labels, runtime, folder, files, pixels):
    """Return the top-1 class of each image, and the seconds per image."""
    seconds = []
    for count in (_WARM, len(files)):
        start = time.perf_counter()
        outputs, _ = fresh_process.run(runtime, folder, _inputs(runtime, files[:count], pixels[:count]))
        seconds.append(time.perf_counter() - start)
    per_image = (seconds[1] - seconds[0]) / (len(files) - _WARM)
    if runtime != "saved_model":
        return labels[outputs["logits"].argmax(-1)], per_image
    return outputs["serving_default/classes"][:, 0], per_image


def _inputs(runtime, files, pixels):
    if runtime != "saved_model":
        return {"images": pixels}
    return {f"file_{index}": np.frombuffer(file, np.uint8) for index, file in enumerate(files)}


if __name__ == "__main__":
    main()
