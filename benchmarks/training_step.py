"""Compare time and memory of a training step of ViT-B/16 on a CPU with other libraries, and the time of the first."""

from benchmarks.contest import Contender, contest
from benchmarks.report import Table, is_installed, ratio

BATCH = 8
OURS, LIMIT = "keras_vit", "matrix product"
# name -> job, package, additional arguments of the model
CONTENDERS = {
    OURS: ("keras_vit_training", "keras_vit", {}),
    "keras_vit, remat attention": ("keras_vit_training", "keras_vit", {"remat": "attention"}),
    "keras_vit, remat block": ("keras_vit_training", "keras_vit", {"remat": "block"}),
    "keras-hub": ("keras_hub_training", "keras-hub", {}),
    "transformers (torch)": ("transformers_training", "transformers", {}),
    LIMIT: ("matrix_product", "tensorflow", {"passes": 3}),
}
NOTE = (
    "ViT-B/16, 224 px, batch 8, Adam: images per second of `train_on_batch`; mixed precision uses bfloat16. *First "
    "step* is the additional time of the first step; *peak* is the peak memory of the process. The last row runs the "
    "same number of operations as products of large square matrices; *limit* is the speed relative to it. For remat, "
    "*keras_vit is faster by* compares with keras_vit without it."
)

WEIGHTS = 86_567_656 * 4 / 2**20  # MiB, of ViT-B/16 with 1000 classes
NOTE_MEMORY = (
    "MiB. *Built model* is the peak memory before the first step, with libraries and weights. Gradients are as large "
    "as the weights, the moments twice as large. *Activations and other* is the rest of the peak: what the forward "
    "pass stores for the backward pass, 16-bit copies of weights, and temporary memory."
)


def run(options):
    for dtype in ("float32", "mixed_bfloat16"):
        yield from _tables(dtype, options)


def _tables(dtype, options):
    contenders = [
        Contender(name, f"contenders:{job}", {"batch": BATCH, "dtype": _dtype(name, dtype), **arguments})
        for name, (job, package, arguments) in CONTENDERS.items()
        if is_installed(package) and (options.peers or package in ("keras_vit", "tensorflow"))
    ]
    results = contest(contenders, options.rounds, warm_up=1)
    ours = results[OURS]
    rows = [
        (
            name,
            f"{BATCH / result.median:.2f}",
            "" if result is ours else ratio(ours.times_faster_than(result)),
            ratio(result.times_faster_than(results[LIMIT])),
            f"{result.prepared:.1f}",
            f"{result.first - result.median:.1f}",
            f"{result.peak / 2**20:.0f}",
        )
        for name, result in results.items()
    ]
    columns = ("", "images/s", "keras_vit is faster by", "limit", "build s", "first step s", "peak MiB")
    yield Table(f"Training step, {dtype}", NOTE, columns, rows)
    yield _memory(dtype, {name: result for name, result in results.items() if name != LIMIT})


def _memory(dtype, results):
    """Return a table of the parts of the peak. Sizes of gradients and moments are computed, the rest is not split."""
    columns = ("", "built model", "gradients", "moments of Adam", "activations and other", "peak")
    rows = []
    for name, result in results.items():
        parts = [result.prepared_peak / 2**20, WEIGHTS, 2 * WEIGHTS]
        parts += [result.peak / 2**20 - sum(parts), result.peak / 2**20]
        rows.append((name, *(f"{part:.0f}" for part in parts)))
    return Table(f"Memory of a training step, {dtype}", NOTE_MEMORY, columns, rows)


def _dtype(name, dtype):
    return dtype.removeprefix("mixed_") if name == LIMIT else dtype
