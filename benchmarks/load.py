"""Compare time and memory of loading a ViT-B/16 from a file with `np.load` of all its arrays."""

import pathlib
import statistics
import tempfile
import threading

import numpy as np

from benchmarks.contenders import quietly
from benchmarks.contest import Contender, contest
from benchmarks.report import Table

ARRAYS = "`np.load` of every array"
# name -> job, layout of the file
CONTENDERS = {
    ARRAYS: ("arrays", "official"),
    "`load_weights` of `.npz`": ("into_a_built_model", "official"),
    "`ViT_B16(weights=)` of `.npz`": ("new_model", "official"),
    "`load_weights` of `.safetensors`": ("into_a_built_model", "timm"),
    "`ViT_B16(weights=)` of `.safetensors`": ("new_model", "timm"),
}
SUFFIXES = {"official": ".npz", "timm": ".safetensors"}
NOTE = (
    "ViT-B/16 with 1000 classes at 224 px, from a file in the page cache; medians over alternating fresh processes. "
    "*Memory* is the growth of the peak anonymous memory (RssAnon, every 2 ms) during loading, relative to the size of "
    "the weights, with TensorFlow already imported; pages of mapped files do not count. For `load_weights`, the model "
    "is built before; the size of its weights is added."
)


class Watched:
    """Work that measures `peak`, the peak anonymous memory of its process in bytes, instead of worker.py."""

    def __init__(self, work):
        self._work, self.peak = work, anonymous_memory()

    def __call__(self):
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,))
        sampler.start()
        try:
            result = self._work()  # is in memory at the last sample
        finally:
            done.set()
            sampler.join()
        return result

    def _sample(self, done):
        while not done.wait(0.002):
            self.peak = max(self.peak, anonymous_memory())
        self.peak = max(self.peak, anonymous_memory())


def anonymous_memory():
    """Return RssAnon of this process in bytes; needs Linux."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def arrays(file):
    import keras_vit  # noqa: F401, so that its memory is not counted

    def load():
        with np.load(file) as opened:
            return {name: opened[name] for name in opened.files}

    return Watched(load)


def into_a_built_model(file):
    import keras_vit

    model = keras_vit.ViT_B16()
    return Watched(lambda: quietly(keras_vit.load_weights, model, file))


def new_model(file):
    import keras_vit

    keras_vit.create_model("ViT-Ti_16", image_size=32)  # one-time work of Keras
    return Watched(lambda: quietly(keras_vit.ViT_B16, weights=file))


def write(layout, file):
    """Write the weights of a random model to a file; a separate process keeps its memory out of the measurement."""
    import keras_vit

    model = keras_vit.ViT_B16()
    return lambda: quietly(keras_vit.save_weights, model, file, layout=layout)


def run(options):
    with tempfile.TemporaryDirectory() as folder:
        files = {layout: str(pathlib.Path(folder) / f"B_16{suffix}") for layout, suffix in SUFFIXES.items()}
        for layout, file in files.items():
            contest([Contender("file", "load:write", {"layout": layout, "file": file})], rounds=0, warm_up=0)
        results = {name: [] for name in CONTENDERS}
        for _ in range(options.rounds):
            for name, (job, layout) in CONTENDERS.items():
                contender = Contender(name, f"load:{job}", {"file": files[layout]})
                results[name].append(contest([contender], rounds=0, warm_up=0)[name])
        yield _table(results, pathlib.Path(files["official"]).stat().st_size)


def _table(results, size):
    arrays = [result.first for result in results[ARRAYS]]
    rows = []
    for name, runs in results.items():
        ratios = [run.first / base for run, base in zip(runs, arrays, strict=True)]
        growth = statistics.median(run.peak - run.prepared_peak for run in runs)
        held = size if "load_weights" in name else 0
        seconds = statistics.median(run.first for run in runs)
        rows.append((name, f"{seconds:.2f}", f"{statistics.median(ratios):.2f}", f"{(growth + held) / size:.2f}"))
    return Table(f"Loading {size / 2**20:.0f} MiB", NOTE, ("", "seconds", "times `np.load`", "memory"), rows)
