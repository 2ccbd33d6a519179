"""Random damage of a file gives a ValueError or the arrays, nothing else."""

import os
import pathlib
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import ARRAYS, flips, read_all, write

FUZZED = 300


def content_of(kind, path):
    if kind == "safetensors":
        safetensors.numpy.save_file(ARRAYS, path)
    else:
        (np.savez_compressed if kind == "compressed" else np.savez)(path, **ARRAYS)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["npz", "compressed", "safetensors", "keras"])
def test_random_damage(tmp_path, make_model, kind):
    path = tmp_path / f"a.{kind if kind in ('safetensors', 'keras') else 'npz'}"
    if kind == "keras":
        make_model(num_layers=1).save(path)
        content = path.read_bytes()
    else:
        content = content_of(kind, path)
    refusals, peak = 0, 0
    tracemalloc.start()
    try:
        for damaged in flips(content, FUZZED):
            tracemalloc.reset_peak()
            try:
                read_all(write(path, damaged))
            except ValueError:
                refusals += 1
            peak = max(peak, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert refusals > FUZZED / 4
    assert peak < 4 * 2**20


@pytest.mark.slow
def test_random_damage_of_hdf5(tmp_path, make_model):
    """In a process of its own, for libhdf5 has no checksums and cannot be interrupted."""
    make_model(num_layers=1).save_weights(tmp_path / "base.weights.h5")
    code = f"""
        import pathlib, sys
        sys.path[:0] = [{str(pathlib.Path(__file__).parents[1])!r}, {str(pathlib.Path(__file__).parents[2])!r}]
        import checkpoint_files
        folder, refusals = pathlib.Path({str(tmp_path)!r}), 0
        for number, content in enumerate(checkpoint_files.flips((folder / "base.weights.h5").read_bytes(), {FUZZED})):
            path = folder / f"{{number}}.weights.h5"
            path.write_bytes(content)
            try:
                checkpoint_files.read_all(path)
            except ValueError:
                refusals += 1
            path.unlink()
        print("refusals", refusals)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) > FUZZED / 20
