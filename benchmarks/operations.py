"""Measure the time of each operation of one batch in TensorFlow's optimised graph."""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import contenders
from benchmarks.contest import REPOSITORY
from benchmarks.report import Table

BATCH = 8
_OF_THE_RUNTIME = ("Process", "Run")
_CALLS = 5
_SMALL = 1.0  # ms; faster operations are summed in one row
NOTE = (
    "ViT-B/16, 224 px, batch 8, the fastest of five calls of `predict_on_batch`, measured with TensorFlow's profiler. "
    "*ms at the limit* is the time that the operation's multiply-accumulates would need at the speed of products of "
    "3072 x 3072 matrices, measured in the same process. The difference is due to the operation's shapes and, in dense "
    "layers, to bias and GELU."
)
# operation of the optimised graph -> what it computes, GFLOP per image
_PRODUCTS = {
    "_MklNativeFusedMatMul": ("dense layers, with bias and GELU", 33.46),
    "_MklBatchMatMulV2": ("q k^T and A v", 1.43),
    "_MklNativeFusedConv2D": ("patch embedding", 0.23),
}
_MEANINGS = {
    "_MklTranspose": "splitting and merging heads",
    "_MklSoftmax": "attention weights",
    "_MklLayerNorm": "layer norms",
    "AddV2": "residual sums, position embeddings",
    "Mul": "scaling of the queries",
    "Cast": "conversion to and from float32",
}


def run(options):
    for dtype in ("float32", "bfloat16"):
        command = [sys.executable, "-m", "benchmarks.operations", dtype]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        yield _table(dtype, json.loads(done.stdout.splitlines()[-1]))


def _table(dtype, found):
    total, speed = found["seconds"] * 1000, found["gflops"]
    rows, small = [], 0.0
    for operation, (milliseconds, count) in sorted(found["operations"].items(), key=lambda item: -item[1][0]):
        meaning, gflop = _PRODUCTS.get(operation, (_MEANINGS.get(operation, ""), 0.0))
        if milliseconds < _SMALL:
            small += milliseconds
            continue
        at_limit = f"{1000 * BATCH * gflop / speed:.0f}" if gflop else ""
        rows.append((operation, meaning, count, f"{milliseconds:.1f}", f"{milliseconds / total:.1%}", at_limit))
    listed = sum(milliseconds for milliseconds, _ in found["operations"].values())
    rows.append(("others below 1 ms", "", "", f"{small:.1f}", f"{small / total:.1%}", ""))
    rows.append(("between operations", "", "", f"{total - listed:.1f}", f"{(total - listed) / total:.1%}", ""))
    limit = 1000 * BATCH * contenders.GFLOP_PER_IMAGE / speed
    rows.append(("all", "", "", f"{total:.1f}", "100.0%", f"{limit:.0f}"))
    columns = ("operation", "what it computes", "calls", "ms", "share", "ms at the limit")
    return Table(f"Operations of inference, {dtype}", NOTE, columns, rows)


def measure(dtype):
    """Return the speed of products of large matrices, and the time of a batch: in total and per operation.

    Returns:
        `gflops` (GFLOP/s), `seconds`, and `operations`, a dict from operation to (milliseconds, calls).
    """
    predict = contenders.keras_vit_inference(BATCH, dtype)
    multiply = contenders.matrix_product(BATCH, dtype)
    for work in (predict, predict, multiply):
        work()
    times = {predict: [], multiply: []}
    for _ in range(_CALLS):
        for work, seconds in times.items():
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
    gflops = BATCH * contenders.GFLOP_PER_IMAGE / min(times[multiply])
    profiles = [_profiled(predict) for _ in range(_CALLS)]
    return {"gflops": gflops, **min(profiles, key=lambda profile: profile["seconds"])}


def _profiled(work):
    import tensorflow as tf

    totals, counts, whole = collections.Counter(), collections.Counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, tf.profiler.experimental.ProfilerOptions(host_tracer_level=2))
        work()
        tf.profiler.experimental.stop()
        for name, seconds in _events(next(pathlib.Path(folder).rglob("*.xplane.pb"))):
            node, _, operation = name.partition("#")[0].rpartition(":")
            if not node or operation in _OF_THE_RUNTIME:
                continue
            if operation.startswith(" __inference"):
                whole += seconds
            elif not operation.startswith(" "):
                totals[operation] += 1000 * seconds
                counts[operation] += 1
    return {"seconds": whole, "operations": {name: (totals[name], counts[name]) for name in totals}}


def _events(file):
    """Yield name and seconds of every event that the profiler recorded on the CPU."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                yield plane.event_metadata[event.metadata_id].name, event.duration_ps * 1e-12


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
