"""Compile a step of every model for TPU slices on a machine without one, and make a table of the results.

    pip install -e '.[tpu]'
    python -m benchmarks.tpu_table compile          # what benchmarks/tpu_steps.jsonl lacks; can be stopped and resumed
    python -m benchmarks.tpu_table print            # the table, as Markdown

Models of the same width, depth and number of tokens have the same step, so one of them stands for all. Token counts
that a TPU pads to the same multiple of 8 count as the same. Each step is that of benchmarks/tpu_compile.py, with the
largest batch, a power of two, that a model of the memory lets fit, and halved until the compiler agrees. Training
recomputes each block (`remat="block"`) if fewer than 32 images per chip fit otherwise; weights are divided among as few
chips as are needed.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import math
import pathlib
import subprocess
import sys

from benchmarks.report import Table

RESULTS = pathlib.Path(__file__).with_name("tpu_steps.jsonl")


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip, by docs.cloud.google.com/tpu/docs: bfloat16 FLOP/s, bytes, bytes/s of memory and between chips."""

    flops: float
    memory: float
    bandwidth: float
    exchange: float


CHIPS = {"v5e": Chip(197e12, 16e9, 819e9, 400e9), "v6e": Chip(918e12, 32e9, 1638e9, 800e9)}
SLICES = {1: "1x1", 8: "2x4", 256: "16x16"}
LARGE = ("ViT-L_16", "DINOv2-g_14", "DINOv3-7B_16")  # also on 256 chips
USED = 0.92  # share of the memory that a step may use
LARGEST = 1024  # images per chip


def rows():
    """Return a dict from the model that stands for a row to all models of the row; the largest rows come first."""
    from keras_vit.config import ViTConfig
    from keras_vit.variants import VARIANTS

    found = {}
    for name in VARIANTS:
        config = VARIANTS[name].reference
        key = name
        if isinstance(config, ViTConfig) and config.attention == "global":
            key = (config.hidden_dim, config.num_layers, config.stem is not None, _tokens(config))
        found.setdefault(key, []).append(name)
    models = sorted(found.values(), key=len, reverse=True)
    return {next((name for name in LARGE if name in names), names[0]): names for names in models}


def jobs(models):
    """Return (model, work, chip, number of chips) for every compilation."""
    chosen = [(count, model) for count in SLICES for model in models if count < 256 or model in LARGE]
    return [
        (model, work, chip, count)
        for (count, model), work, chip in itertools.product(chosen, ("training", "inference"), CHIPS)
        if work == "inference" or _has_head(model)
    ]


def _has_head(model):
    """Return whether a model ends in scores to train; SAM's encoder ends in a map."""
    from keras_vit.variants import VARIANTS

    return getattr(VARIANTS[model].reference, "pooling", None) != "unpooled"


def compile_missing(processes, models, slices, work):
    """Compile what is missing of these models, numbers of chips and kinds of work; None: of all."""
    done = {tuple(row["job"]) for row in results()}
    known = rows()
    if unknown := set(models or ()).difference(known):
        raise SystemExit(
            f"--models: {', '.join(sorted(unknown))} must be among the models that stand for a row: {', '.join(known)}"
        )
    wanted = [job for job in jobs(models or known) if job[1] in (work or job[1]) and job[3] in (slices or SLICES)]
    missing = [job for job in wanted if job not in done]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(_in_process, job) for job in missing]
        for number, finished in enumerate(concurrent.futures.as_completed(running), 1):
            print(f"{number} of {len(missing)}:", *finished.result(), flush=True)


def results():
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def _in_process(job):
    """Compile a job in its own process, append its result to the file, and return what to print."""
    command = [sys.executable, "-m", "benchmarks.tpu_table", "job", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return *job, f"ended with {done.returncode}: {done.stderr[-2000:]}"  # the other jobs continue
    row = done.stdout.splitlines()[-1]
    with RESULTS.open("a") as file:
        file.write(row + "\n")
    return *job, json.loads(row).get("failure", "")


def compile_job(model, work, chip, count):
    """Return the result of one job: its settings, and the cost of the step or why there is none."""
    from benchmarks import tpu_compile

    row = {"job": [model, work, chip, count]}
    built = tpu_compile.build(model, work)
    remat, mesh, batch = settings(built, work, CHIPS[chip], count)
    while batch:
        built = tpu_compile.build(model, work, **({"remat": remat} if remat else {}))
        row |= {"remat": remat, "mesh": mesh, "batch": batch * mesh[0]}
        cost = tpu_compile.measure(built, work, f"{chip}:{SLICES[count]}", batch * mesh[0], mesh)
        if "failure" not in cost:
            return row | {name: cost[name] for name in _KEPT}
        batch //= 2
    return row | {"failure": "does not fit"}


_KEPT = ("counted_flops", "peak_bytes", "flops", "bytes_accessed", "exchanges", "exchanged_bytes", "seconds")


def settings(model, work, chip, count):
    """Return remat, mesh and images per part of the batch that the model of the memory lets fit; 0 images if none do.

    The model: training holds 16 bytes per weight (weights, gradients, two moments) and per image what the blocks store,
    inference 2 bytes per weight and the largest block. Widths are padded to 128.
    """
    state = model.count_params() * (16 if work == "training" else 2)
    for parts in (2**exponent for exponent in range(int(math.log2(count)) + 1)):
        free = USED * chip.memory - state / parts
        for remat in _remats(model, work):
            fits = free / (image_bytes(model, work, remat) / parts)
            if fits >= (32 if remat != _remats(model, work)[-1] else 1):
                return remat, (count // parts, parts), min(LARGEST * parts, 2 ** int(math.log2(fits)))
    return None, (1, count), 0


def _remats(model, work):
    return (None, "block") if work == "training" and hasattr(model.config, "remat") else (None,)


def image_bytes(model, work, remat):
    """Return the bytes that one image takes in the model of the memory."""
    config = model.config
    if not hasattr(config, "hidden_dim"):  # Swin and ResNets: every output of a layer
        outputs = sum(math.prod(layer.output.shape[1:]) for layer in model.layers if len(layer.output.shape) > 2)
        return outputs * (20 if work == "training" else 4)
    tokens, width, mlp = _tokens(config), _padded(config.hidden_dim), _padded(config.mlp_dim)
    logits = 6 * config.num_heads * min(tokens, 256) * _padded(tokens)
    block = 2 * tokens * (5 * width + mlp * (2 if config.block.gated else 1))
    if work == "inference" or remat == "block":
        return block + logits + (2 * config.num_layers * tokens * width if work == "training" else 0)
    return config.num_layers * block + logits


def _tokens(config):
    rows, columns = config.grid_size or config.table_grid
    return -(-(rows * columns + config.num_prefix_tokens) // 8) * 8


def _padded(width):
    return -(-width // 128) * 128


def roofline(row):
    """Return seconds and utilisation of a step that is as fast as arithmetic, memory and exchanges each allow."""
    chip = CHIPS[row["job"][2]]
    seconds = max(
        row["flops"] / chip.flops, row["bytes_accessed"] / chip.bandwidth, row["exchanged_bytes"] / chip.exchange
    )
    return seconds, row["counted_flops"] / (seconds * chip.flops)


COLUMNS = (
    *("model", "models", "chips", "batch", "mesh", "remat", "peak GB", "TFLOP", "GB moved", "exchanges"),
    *("GB exchanged", "bound s", "bound images/s", "MFU at most"),
)
NOTE = (
    "All numbers but the batch and images/s are per chip. *TFLOP* and *GB moved* (memory of the chip) are the "
    "compiler's. *Bound* is the time of the longest of arithmetic, memory and exchanges at the chip's peak rates; a "
    "real step takes longer. *MFU at most* are the operations of the model, without those that are computed again, in "
    "that time, relative to the peak."
)


def tables():
    """Yield a table for each work and kind of chip."""
    models, found = rows(), {tuple(row["job"]): row for row in results()}
    for work, chip in itertools.product(("training", "inference"), CHIPS):
        lines = [
            _line(found[job], len(models[job[0]]))
            for job in sorted(jobs(models), key=lambda job: (job[0], job[3]))
            if job in found and job[1:3] == (work, chip)
        ]
        yield Table(f"{work.capitalize()} on {chip}", NOTE, COLUMNS, lines)


def _line(row, models):
    model, _, _, count = row["job"]
    if "failure" in row:
        return (model, models, count, row["failure"], *[""] * (len(COLUMNS) - 4))
    seconds, utilisation = roofline(row)
    return (
        *(model, models, count, row["batch"], "x".join(map(str, row["mesh"])), row["remat"] or ""),
        *(f"{row['peak_bytes'] / 1e9:.1f}", f"{row['flops'] / 1e12:.3g}", f"{row['bytes_accessed'] / 1e9:.3g}"),
        *(row["exchanges"], f"{row['exchanged_bytes'] / 1e9:.3g}", f"{seconds:.2g}", f"{row['batch'] / seconds:.0f}"),
        f"{utilisation:.0%}",
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks.tpu_table"
    )
    parser.add_argument("action", choices=("compile", "print", "job"))
    parser.add_argument("job", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--models", nargs="+", help="only these, of those that stand for a row")
    parser.add_argument("--work", nargs="+", choices=("training", "inference"), help="only this work")
    parser.add_argument("--chips", type=int, nargs="+", choices=SLICES, help="only these numbers of chips")
    parser.add_argument("--processes", type=int, default=1, help="compilations at the same time")
    arguments = parser.parse_args()
    if arguments.action == "compile":
        compile_missing(arguments.processes, arguments.models, arguments.chips, arguments.work)
    elif arguments.action == "job":
        print(json.dumps(compile_job(*json.loads(arguments.job))))
    else:
        print(*tables(), sep="\n")


if __name__ == "__main__":
    main()
