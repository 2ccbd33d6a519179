"""Compare the inference speed of ViT-B/16 on a CPU with other libraries and with plain matrix products."""

from benchmarks.contest import Contender, contest
from benchmarks.report import Table, is_installed, ratio

BATCHES = (1, 8, 32)
LIMIT = "matrix product"
OURS = "keras_vit"
# name -> job, package, {dtype of the computation: dtype argument of the model}
CONTENDERS = {
    OURS: ("keras_vit_inference", "keras_vit", {"float32": "float32", "bfloat16": "bfloat16"}),
    "keras_vit, float32 weights": ("keras_vit_inference", "keras_vit", {"bfloat16": "mixed_bfloat16"}),
    "keras-hub": ("keras_hub_inference", "keras-hub", {"float32": "float32", "bfloat16": "bfloat16"}),
    "keras-hub, float32 weights": ("keras_hub_inference", "keras-hub", {"bfloat16": "mixed_bfloat16"}),
    "transformers (torch)": (
        "transformers_inference",
        "transformers",
        {"float32": "float32", "bfloat16": "bfloat16"},
    ),
    LIMIT: ("matrix_product", "tensorflow", {"float32": "float32", "bfloat16": "bfloat16"}),
}
NOTE = (
    "ViT-B/16, 224 px, images per second from NumPy batch to NumPy logits (`predict_on_batch`). The last row runs the "
    "same number of operations as products of large square matrices in TensorFlow; *limit* is the speed relative to it."
)


def run(options):
    for precision in ("float32", "bfloat16"):
        for batch in options.choose(BATCHES):
            yield _table(precision, batch, options)


def _table(precision, batch, options):
    contenders = [
        Contender(name, f"contenders:{job}", {"batch": batch, "dtype": dtypes[precision]})
        for name, (job, package, dtypes) in CONTENDERS.items()
        if precision in dtypes and is_installed(package) and (options.peers or package in ("keras_vit", "tensorflow"))
    ]
    results = contest(contenders, options.rounds)
    ours, limit = results[OURS], results[LIMIT]
    rows = [
        (
            name,
            f"{batch / result.median:.2f}",
            "" if result is ours else ratio(ours.times_faster_than(result)),
            ratio(result.times_faster_than(limit)),
            f"{result.peak / 2**20:.0f}",
        )
        for name, result in results.items()
    ]
    columns = ("", "images/s", "keras_vit is faster by", "limit", "peak MiB")
    return Table(f"Inference, {precision}, batch {batch}", NOTE, columns, rows)
