"""Compare the speed from JPEG files to batches at 224 px with other libraries, per core and in wall-clock time."""

import pathlib
import tempfile

import numpy as np

from benchmarks.contest import Contender, contest
from benchmarks.loaders import BATCH
from benchmarks.report import Table, is_installed, ratio

OURS = "keras_vit"
SECONDS = 3.0  # length of a run
# name -> function of loaders.py, packages, additional arguments of the function
_LOADERS = {
    OURS: ("keras_vit", ("keras_vit",), {}),
    "tf.image": ("tf_image", ("tensorflow",), {}),
    "keras-cv": ("keras_cv", ("tensorflow", "keras-cv"), {}),
    "Keras": ("keras", ("tensorflow", "keras"), {}),
    "Pillow": ("pillow", ("pillow",), {}),
}
_RANDAUGMENT = {
    OURS: _LOADERS[OURS],
    "tf.image, RandAugment of keras-cv": ("tf_image", ("keras-cv",), {"randaugment": "keras_cv"}),
    "tf.image, RandAugment of Keras": ("tf_image", ("keras",), {"randaugment": "keras"}),
}
_ALL = (
    "Batches of 32, float32 on [-1, 1]. CPU time is summed over all threads of the process; *images/s per core* is "
    "images per second of CPU time. "
)
# kind -> title, contenders, note
KINDS = {
    "crop": (
        "Training: Inception crop and flip",
        _LOADERS,
        "keras_vit decodes only the crop. tf.image, used as in the official JAX code, and the others decode the whole "
        "image and then crop it. All use bilinear resizing; Pillow also antialiases and rounds to integers. Keras has "
        "no crop of a random size: it resizes to 256 x 256 and crops 224 x 224.",
    ),
    "randaugment": (
        "Training: Inception crop, flip, RandAugment with two operations",
        _RANDAUGMENT,
        "keras_vit: `randaugment(2, 10)` with the original sixteen operations, drawn for each image, with "
        "nearest-neighbour interpolation. The other two use tf.image's crop and bilinear interpolation in float32: "
        "keras-cv with magnitude 0.5, drawn for each image; Keras with factor 0.5, drawn once per batch.",
    ),
    "evaluation": (
        "Evaluation: resize the shorter side to 256, center crop",
        _LOADERS,
        "Files in order. All use bilinear resizing; Pillow also antialiases and rounds to integers. Keras and keras-cv "
        "crop the central square before they resize it.",
    ),
}


def run(options):
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.real_data / "imagenet200" if options.real_data else write_images(pathlib.Path(temporary))
        for kind, (title, loaders, note) in KINDS.items():
            yield _table(
                title, _ALL + note, contest(contenders(kind, loaders, folder, options), options.rounds, SECONDS)
            )


def write_images(folder, count=256, classes=8, size=(375, 500)):
    """Write JPEGs of about 70 kB with noise on several scales, similar to photographs."""
    import PIL.Image

    height, width = size
    rng = np.random.default_rng(0)
    for number in range(count):
        levels = np.full((height, width, 3), 128.0)
        for scale in (4, 16, 64, 250):
            noise = rng.normal(128, 30, (height // scale + 1, width // scale + 1, 3)).clip(0, 255).astype(np.uint8)
            levels += (
                np.asarray(PIL.Image.fromarray(noise).resize((width, height), PIL.Image.Resampling.BICUBIC)) - 128.0
            )
        file = folder / str(number % classes) / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(file, quality=90)
    return folder


def contenders(kind, loaders, folder, options):
    """Return the `Contender`s of one of `KINDS` that are installed."""
    return [
        Contender(name, f"loaders:{function}", {"folder": str(folder), "kind": kind, **arguments})
        for name, (function, packages, arguments) in loaders.items()
        if all(map(is_installed, packages)) and (options.peers or name == OURS)
    ]


def _table(title, note, results):
    ours = results[OURS]
    rows = [
        (
            name,
            f"{BATCH / result.processor_median:.0f}",
            f"{1000 * result.processor_median / BATCH:.2f}",
            "" if result is ours else ratio(ours.times_less_processor_than(result)),
            f"{BATCH / result.median:.0f}",
            "" if result is ours else ratio(ours.times_faster_than(result)),
            f"{result.peak / 2**20:.0f}",
        )
        for name, result in results.items()
    ]
    columns = (
        "",
        "images/s per core",
        "CPU ms per image",
        "keras_vit uses less CPU by",
        "images/s",
        "keras_vit is faster by",
        "peak MiB",
    )
    return Table(title, note, columns, rows)
