"""Compare the time until the first prediction and the first training step with keras-hub."""

import importlib
import statistics

from benchmarks import contenders
from benchmarks.contest import Contender, contest
from benchmarks.report import Table, is_installed

BATCH = 8
# name -> module, function from a dtype to a model
PACKAGES = {
    "keras_vit": ("keras_vit", contenders.keras_vit),
    "keras-hub": ("keras_hub", contenders.keras_hub),
}
STAGES = (
    "import of TensorFlow and Keras",
    "import of the package",
    "build",
    "first prediction",
    "second prediction",
    "first training step",
    "second training step",
)
NOTE = (
    "ViT-B/16, 224 px, float32; predictions and training steps (Adam) with batch 8. Seconds, medians over alternating "
    "fresh processes; the last column is the ratio of keras_vit to keras-hub."
)


def stages(package):
    """Return a function that runs the next stage at each call."""
    steps = _stages(package)
    return lambda: next(steps)


def _stages(package):
    module, build = PACKAGES[package]
    yield importlib.import_module("keras")
    yield importlib.import_module(module)
    model = build("float32")
    yield
    predict = contenders.keras_inference(model, BATCH)
    yield predict()
    yield predict()
    train = contenders.keras_training(model, BATCH)
    yield train()
    yield train()


def run(options):
    names = [name for name in PACKAGES if is_installed(name) and (options.peers or name == "keras_vit")]
    turns = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            contender = Contender(name, "startup:stages", {"package": name})
            result = contest([contender], rounds=len(STAGES) - 1, seconds=0, warm_up=0)[name]
            turns[name].append([result.first, *result.turns])
    medians = {name: [statistics.median(times) for times in zip(*turns[name], strict=True)] for name in names}
    for times in medians.values():
        times += [times[3] - times[4], times[5] - times[6]]
    labels = (*STAGES, "extra time of the first prediction", "extra time of the first training step")
    rows = [_row(label, [times[place] for times in medians.values()]) for place, label in enumerate(labels)]
    yield Table("Startup", NOTE, ("", *names, *(["ratio"] if len(names) > 1 else [])), rows)


def _row(label, seconds):
    share = [f"{seconds[0] / seconds[1]:.2f}"] if len(seconds) > 1 else []
    return (label, *(f"{time:.2f}" for time in seconds), *share)
