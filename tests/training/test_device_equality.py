"""One device against several, with everything at once: clipping that bites, accumulation, averages, several steps per
execution, metrics; stock optimizers of Keras. The runs are those of device_runs.py, in processes of their own.

The key biases are left aside with AdamW: a constant added to the keys changes no attention, so that their true gradient
is zero, and Adam divides the rounding that is left by its own size.
"""

import numpy as np
import pytest
from replica_process import host_environments, start, wait, worker_environments

TOLERANCES = {"sgd": 2e-6, "adamw": 1e-5}

# Runs `devices:optimizer:kind` by backend. The default suite has smaller ones in tests/compat/test_fit.py.
RUNS = {
    "tensorflow": (
        "unclipped:sgd:headed",
        "mirrored2:sgd:headed",
        "mirrored2:sgd:vit",
        "mirrored2:adamw:vit",
        "mirrored2:sgd:lora",
        "mirrored2:adamw:lora",
        "mirrored4:sgd:vit",
        "mirrored4:sgd:headed",
        "mirrored4:adamw:vit",
        "multi_worker:adamw:vit",
        "multi_worker:sgd:headed",
        "multi_worker:sgd:vit",
    ),
    "jax": (
        "data_parallel:adamw:microbatches",
        "data_parallel:sgd:microbatches",
        "data_parallel:sgd:vit",
        "data_parallel:adamw:vit",
        "data_parallel:sgd:headed",
        "data_parallel:sgd:lora",
        "model_parallel:sgd:vit",
        "model_parallel:adamw:vit",
    ),
}
# Runs in several processes on JAX: (processes, devices of each, runs).
HOSTS = (
    (2, 2, ("data_parallel:sgd:measured", "model_parallel22:adamw:vit")),
    (4, 1, ("data_parallel:adamw:vit", "model_parallel22:sgd:measured", "data_parallel:sgd:microbatches")),
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weights_of(tmp_path_factory):
    """Function from a run to its weights by path, a dict for each process, and to those of one device."""
    found = {}

    def weights_of(backend, run):
        if backend not in found:
            found[backend] = _train(tmp_path_factory.mktemp("device_runs"), backend, RUNS[backend])
        of_run = [_of_run(file, run) for file in found[backend]]
        return [weights for weights in of_run if weights], _of_run(found[backend][0], _reference(run))

    return weights_of


@pytest.mark.parametrize("run", [run for run in RUNS["tensorflow"] if not run.startswith("unclipped")])
def test_tensorflow(weights_of, run):
    several, one = weights_of("tensorflow", run)
    assert len(several) == (2 if run.startswith("multi_worker") else 1)
    for weights in several:
        _check_equal(one, weights, run)


@pytest.mark.parametrize("run", RUNS["jax"])
def test_jax(weights_of, run):
    (several,), one = weights_of("jax", run)
    _check_equal(one, several, run)


@pytest.mark.parametrize(("processes", "devices", "runs"), HOSTS, ids=["2", "4"])
def test_jax_in_several_processes(tmp_path, processes, devices, runs):
    pytest.importorskip("jax")
    references = sorted({_reference(run) for run in runs})
    wait([start("device_runs.py", tmp_path / "one.npz", *references, KERAS_BACKEND="jax")])
    files = [tmp_path / f"{index}.npz" for index in range(processes)]
    environments = zip(files, host_environments(processes, devices), strict=True)
    wait([start("device_runs.py", file, *runs, **environment) for file, environment in environments])
    one = _read(tmp_path / "one.npz")
    for run in runs:
        for file in files:
            of_run = _of_run(_read(file), run)
            _check_equal(_of_run(one, _reference(run)), of_run, run)
            if run.startswith("model_parallel"):
                assert of_run["part of block_00/mlp/dense2/kernel"].tolist() == [12, 16]  # of (24, 16), in two


def test_model_parallel_cuts_the_kernels(weights_of):
    (several,), _ = weights_of("jax", "model_parallel:adamw:vit")
    block = "part of block_00/"
    assert several[f"{block}attention/qkv/kernel"].tolist() == [16, 24]  # of (16, 48), in two
    assert several[f"{block}attention/proj/kernel"].tolist() == [8, 16]
    assert several[f"{block}mlp/dense1/kernel"].tolist() == [16, 12]
    assert several[f"{block}mlp/dense2/kernel"].tolist() == [12, 16]


def test_clipping_bites(weights_of):
    """Without it the weights are elsewhere by far more than the tolerance: a difference in it would be seen."""
    (free,), clipped = weights_of("tensorflow", "unclipped:sgd:headed")
    assert max(np.abs(clipped[path] - free[path]).max() for path in clipped) > 1e-3


def _train(folder, backend, runs):
    """Returns what each process trained: the one with the reference runs first, then the workers."""
    pytest.importorskip(backend)
    of_workers = [run for run in runs if run.startswith("multi_worker")]
    references = sorted({_reference(run) for run in runs})
    others = [run for run in runs if run not in of_workers]
    wait([start("device_runs.py", folder / "one.npz", *references, *others, KERAS_BACKEND=backend)])
    files = [folder / "one.npz"]
    if of_workers:
        workers = [folder / f"worker{index}.npz" for index in range(2)]
        environments = zip(workers, worker_environments(2), strict=True)
        wait([start("device_runs.py", file, *of_workers, **environment) for file, environment in environments])
        files += workers
    return [_read(file) for file in files]


def _read(file):
    with np.load(file) as arrays:
        return dict(arrays)


def _reference(run):
    _, optimizer, kind = run.split(":")
    return f"one:{optimizer}:{'vit' if kind == 'microbatches' else kind}"


def _of_run(file, run):
    return {path.removeprefix(f"{run}/"): file[path] for path in file if path.startswith(f"{run}/")}


def _check_equal(one, several, run):
    is_adamw = ":adamw:" in run
    assert len(one) > 20 and any("qkv/bias" in path for path in one)
    for path, expected in one.items():
        difference = np.abs(several[path].astype("float64") - expected)
        if is_adamw and path.endswith("qkv/bias"):
            _, keys, _ = np.split(difference, 3)
            keys[:] = 0
        if is_adamw and path.startswith("optimizer/"):
            continue  # those of the key biases are among them
        assert difference.max() <= TOLERANCES["adamw" if is_adamw else "sgd"], path
