"""Compare accuracy and speed of ways to make a real ViT-Ti/16 faster: dtype, int8, runtime, merging, smaller images."""

import pathlib
import tempfile

import numpy as np

from benchmarks import exported
from benchmarks.contenders import quietly
from benchmarks.contest import Contender, contest
from benchmarks.report import Table, ratio

SIZE, BATCH = 224, 8
BASE = "keras_vit, float32"
# name -> function of this module and its arguments
FORMS = {
    BASE: ("in_memory", {}),
    "keras_vit, bfloat16": ("in_memory", {"dtype": "bfloat16"}),
    "keras_vit, int8": ("in_memory", {"quantization": "int8"}),
    **{f"token merging, r = {r}": ("in_memory", {"token_merging": r}) for r in (4, 8, 12, 16)},
    "token merging, r = 8, bfloat16": ("in_memory", {"token_merging": 8, "dtype": "bfloat16"}),
    "192 px": ("in_memory", {"image_size": 192}),
    "160 px": ("in_memory", {"image_size": 160}),
    "OpenVINO, float32": ("in_runtime", {"form": "openvino", "precision": "float32"}),
    "OpenVINO, bfloat16": ("in_runtime", {"form": "openvino", "precision": "bfloat16"}),
    "OpenVINO, int8": ("in_runtime", {"form": "openvino", "precision": "int8"}),
    "ONNX Runtime, float32": ("in_runtime", {"form": "onnx", "precision": "float32"}),
    "ONNX Runtime, int8": ("in_runtime", {"form": "onnx", "precision": "int8"}),
}
NOTE = (
    "ViT-Ti/16 at 224 px, batch 8: images per second on pixels that are resized already. *Correct* counts the top-1 "
    "answers on 200 ImageNet images, one per class, resized to a square. *Same* are the answers of float32. The int8 "
    "forms were calibrated on every second image. The position embeddings of 192 and 160 px are resized."
)


class Work:
    """Classify the first batch again and again; `figures` has the answers for all images."""

    def __init__(self, run, images):
        batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
        self._run, self._batch = run, batches[0]
        self.figures = {"answers": np.concatenate([run(batch) for batch in batches]).argmax(-1).tolist()}

    def __call__(self):
        self._run(self._batch)


def in_memory(real_data, dtype="float32", quantization=None, **arguments):
    import keras_vit

    model = _model(real_data, dtype=dtype, **arguments)
    if quantization:
        model.quantize(quantization)
    model.compile(jit_compile=False)
    return Work(model.predict_on_batch, keras_vit.preprocess(_paths(real_data), model.preprocessing))


def in_runtime(real_data, form, precision):
    import keras_vit
    from keras_vit.data.images import as_images
    from keras_vit.serving.self_check import resized

    model, paths = _model(real_data), _paths(real_data)
    options = {"quantization": "int8", "calibration": paths[::2]} if precision == "int8" else {}
    with tempfile.TemporaryDirectory() as folder:
        quietly(keras_vit.export, model, folder, form, version=1, check=False, **options)
        run = exported.openvino_runner(folder, precision) if form == "openvino" else exported.onnx_runner(folder)
    return Work(run, resized(model, [np.asarray(read(3)) for read in as_images(paths)]))


def _model(real_data, image_size=SIZE, **arguments):
    import keras_vit

    weights = f"{real_data}/weights/ViT-Ti_16-imagenet2012-224.npz"
    return quietly(keras_vit.ViT_Ti16, weights=weights, image_size=image_size, **arguments)


def _paths(real_data):
    return sorted(str(path) for path in pathlib.Path(real_data, "imagenet200").glob("*/*"))


def run(options):
    if options.real_data is None:
        raise SystemExit("the benchmark tradeoff needs real weights and images: --real-data FOLDER")
    contenders = [
        Contender(name, f"tradeoff:{job}", {"real_data": str(options.real_data), **arguments})
        for name, (job, arguments) in FORMS.items()
    ]
    results = contest(contenders, options.rounds)
    truth = [int(path.split("/")[-2].split("_")[0]) for path in _paths(options.real_data)]
    base = results[BASE]
    rows = [
        (
            name,
            f"{BATCH / result.median:.1f}",
            ratio(result.times_faster_than(base)),
            sum(map(int.__eq__, result.figures["answers"], truth)),
            sum(map(int.__eq__, result.figures["answers"], base.figures["answers"])),
        )
        for name, result in results.items()
    ]
    yield Table("Accuracy and speed", NOTE, ("", "images/s", "speedup", "correct of 200", "same as float32"), rows)
