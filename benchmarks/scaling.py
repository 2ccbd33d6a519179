"""Measure how time and memory of inference grow with batch, resolution and depth, and what axial attention saves."""

from benchmarks.contenders import keras_inference
from benchmarks.contest import Contender, contest
from benchmarks.report import Table, ratio

BATCHES = (8, 16, 32, 64)
RESOLUTIONS = (224, 384, 512)
DEPTHS = (6, 12, 24)
AXIAL_RESOLUTIONS = (224, 448, 672, 896)
BASE = {"variant": "ViT-B_16", "image_size": 224, "batch": 8, "layers": 12}
NOTE = (
    "Inference in float32 (`predict_on_batch`), ViT-B/16. Except for the varied value, models have 224 px, batch 8 and "
    "12 blocks. *Work* is the number of multiply-accumulates for the batch, counted from the model's graph; it and the "
    "times are relative to the first row."
)
NOTE_AXIAL = (
    "Inference in float32 on one image. An axial block attends along rows, then along columns (appendix D.6 of arXiv "
    "2010.11929). It has the layers of two blocks, but its attention costs grow with the number of patches times the "
    "longer side of the grid, instead of with the square of the number of patches. *In theory* is the ratio of the "
    "multiply-accumulates."
)


def inference(variant, image_size, batch, layers):
    """Return the work of a contender."""
    return keras_inference(_model(variant, image_size, layers), batch)


def _model(variant, image_size, layers):
    import keras_vit
    from keras_vit.zoo import VARIANTS

    return keras_vit.VisionTransformer(VARIANTS[variant].config(image_size=image_size).replace(num_layers=layers))


def _macs(variant, image_size, batch, layers):
    from keras_vit.compat.initial_values import build_deferred
    from keras_vit.models.costs import count_macs

    return batch * count_macs(build_deferred(lambda: _model(variant, image_size, layers))[0])


def run(options):
    for title, name, sizes in (
        ("Batch", "batch", BATCHES),
        ("Resolution", "image_size", RESOLUTIONS),
        ("Depth", "layers", DEPTHS),
    ):
        yield _growth(title, name, options.choose(sizes), options)
    yield _axial(options)


def _growth(title, name, sizes, options):
    cases = {str(size): {**BASE, name: size} for size in sizes}
    results = contest([Contender(size, "scaling:inference", case) for size, case in cases.items()], options.rounds)
    first, macs = results[str(sizes[0])], {size: _macs(**case) for size, case in cases.items()}
    rows = [
        (
            size,
            f"{result.median:.2f}",
            ratio(first.times_faster_than(result)),
            f"{macs[size] / macs[str(sizes[0])]:.2f}",
            f"{result.peak / 2**20:.0f}",
        )
        for size, result in results.items()
    ]
    return Table(f"{title} of ViT-B/16", NOTE, (name, "seconds", "times the first", "work", "peak MiB"), rows)


def _axial(options):
    rows = []
    for size in options.choose(AXIAL_RESOLUTIONS):
        cases = {
            name: {"variant": name, "image_size": size, "batch": 1, "layers": 12}
            for name in ("ViT-B_16", "AxialViT-B_16")
        }
        results = contest([Contender(name, "scaling:inference", case) for name, case in cases.items()], options.rounds)
        whole, axial = results.values()
        macs_whole, macs_axial = (_macs(**case) for case in cases.values())
        times, *memory = whole.times_faster_than(axial), whole.peak, axial.peak
        seconds = (f"{result.median:.2f}" for result in (whole, axial))
        peaks = (f"{peak / 2**20:.0f}" for peak in memory)
        rows.append((size, *seconds, ratio(times), f"{macs_axial / macs_whole:.2f}", *peaks))
    columns = ("px", "global s", "axial s", "axial / global", "in theory", "global peak MiB", "axial peak MiB")
    return Table("Axial against global attention", NOTE_AXIAL, columns, rows)
