"""How long `ViT_B16(weights=FILE)` takes against its parts: `python -m benchmarks.load_weights [--file B16.npz]`.

The parts are `np.load` of every array of the file, all held at the end as the model holds them, and building the model
without drawing a value (with no values at all, and with zeros). Medians of rounds in one process, after a round that is
not counted; run it on a machine that does nothing else.
"""

import argparse
import contextlib
import io
import pathlib
import statistics
import tempfile
import time

import keras
import numpy as np

import keras_vit
from keras_vit.checkpoints import names
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.zoo import VARIANTS

LIMIT = 1.3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", help="an official ViT-B/16 of 1000 classes at 224; without it one is made up")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.file or write_checkpoint(pathlib.Path(folder) / "B_16.npz")
        print_table(measure(file, arguments.rounds), pathlib.Path(file).stat().st_size)


def write_checkpoint(path):
    """Writes an official ViT-B/16 file of 346 MB in which every array is filled with a number of its own."""
    model, variables = build()
    arrays = {}
    for number, variable in enumerate(variables, start=1):
        rule = names.find_rule(names.LAYOUTS["vit"]["official"], variable.path, model.config)
        if rule is None:
            arrays["Transformer/posembed_input/pos_embedding"] = np.full(variable.shape, number, "float32")
            continue
        piece = (*variable.shape[:-1], variable.shape[-1] // len(rule.theirs))
        shape = names.theirs_shape(piece, rule.form, model.config.num_heads)
        arrays |= {name: np.full(shape, number, "float32") for name in rule.theirs}
    np.savez(path, **arrays)
    return path


def build():
    """The model with variables that have no values yet, and these variables."""
    return build_deferred(lambda: keras_vit.VisionTransformer(VARIANTS["ViT-B_16"].config(image_size=224)))


def build_with_zeros():
    model, variables = build()
    initialise(variables, {id(v): lambda v=v: keras.ops.zeros(v.shape, v.dtype) for v in variables})
    return model


def load_arrays(file):
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


def load_model(file):
    with contextlib.redirect_stdout(io.StringIO()):
        return keras_vit.ViT_B16(weights=file)


def measure(file, rounds):
    """Returns {what: (median of the wall times, median of the processor times)} in seconds."""
    steps = {
        "np.load of every array": lambda: load_arrays(file),
        "build without values": build,
        "build with zeros": build_with_zeros,
        "ViT_B16(weights=file)": lambda: load_model(file),
    }
    times = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            wall, processor = time.perf_counter(), time.process_time()
            result = step()
            times[name].append((time.perf_counter() - wall, time.process_time() - processor))
            del result
            keras.utils.clear_session()
    return {name: tuple(map(statistics.median, zip(*pairs[1:], strict=True))) for name, pairs in times.items()}


def print_table(times, size):
    print(f"{size / 2**20:.0f} MiB, keras backend {keras.backend.backend()}")
    print(f"{'':28}{'wall s':>9}{'cpu s':>9}")
    for name, pair in times.items():
        print(f"{name:28}{pair[0]:9.3f}{pair[1]:9.3f}")
    arrays, empty, zeros, model = times.values()
    for name, built in (("without values", empty), ("with zeros", zeros)):
        ratios = [model[clock] / (arrays[clock] + built[clock]) for clock in (0, 1)]
        print(f"{'ratio to a build ' + name:28}" + "".join(f"{ratio:9.2f}" for ratio in ratios) + f"   limit {LIMIT}")


if __name__ == "__main__":
    main()
