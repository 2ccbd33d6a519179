"""Time and memory of one training step of ViT-B/16 on this processor, beside peers; what the first step costs."""

from benchmarks.contest import Contender, contest
from benchmarks.report import Table, is_installed, ratio

BATCH = 8
OURS, LIMIT = "keras_vit", "matrix product"
# name -> job, package, what else it is built with
CONTENDERS = {
    OURS: ("keras_vit_training", "keras_vit", {}),
    "keras_vit, remat": ("keras_vit_training", "keras_vit", {"remat": True}),
    "keras-hub": ("keras_hub_training", "keras-hub", {}),
    "transformers (torch)": ("transformers_training", "transformers", {}),
    LIMIT: ("matrix_product", "tensorflow", {"passes": 3}),
}
NOTE = (
    "ViT-B/16, 224 px, batch 8, Adam: pictures per second of `train_on_batch`, mixed precision in bfloat16. *First "
    "step* is what the first one took longer than the later ones; *peak* is of the whole process. The last row is as "
    "many operations in products of square matrices."
)


def run(options):
    for dtype in ("float32", "mixed_bfloat16"):
        yield _table(dtype, options)


def _table(dtype, options):
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
    columns = ("", "pictures/s", "keras_vit is faster by", "limit", "build s", "first step s", "peak MiB")
    return Table(f"Training step, {dtype}", NOTE, columns, rows)


def _dtype(name, dtype):
    return dtype.removeprefix("mixed_") if name == LIMIT else dtype
