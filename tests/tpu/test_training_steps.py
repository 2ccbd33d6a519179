"""A TPU can run the training steps: they lower for it without a call it lacks, and its own compiler takes them."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
from families import FAMILIES

HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parents[1]
CONTROL = "Keras's own attention"
OPTIONS = (
    "clipping and weight decay",
    "averaging and accumulation",
    "bfloat16, recomputation and dropout",
    "bytes in and mixed labels",
    "several labels",
    "microbatches",
    "vit/imagenet",
    "vit/finetune/imagenet-512",
    "deit/imagenet",
    "bit/s",
)
COMPILED = {
    "options on one chip": ("v5e:1x1", (*OPTIONS, CONTROL)),
    "options on eight chips": ("v5e:2x4", OPTIONS),
    "families on eight chips": ("v5e:2x4", tuple(FAMILIES)),
}
SCALARS = 8  # sums beside the gradients: of the loss and the metrics

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
    reason="needs JAX and libtpu, the compiler: the extra [tpu]",
)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [OPTIONS, tuple(FAMILIES)])
def test_every_step_lowers_for_a_tpu_without_custom_calls(steps):
    calls = _run("jax", "lower", *steps, CONTROL)
    # The control shows that the search can find. Without a call, Keras may have mended its attention on TPUs.
    assert calls.pop(CONTROL) == ["tpu_custom_call"]
    assert calls == {name: [] for name in steps}


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize("steps", COMPILED)
def test_every_step_compiles_with_libtpu(steps):
    topology, names = COMPILED[steps]
    costs = _run("jax", "compile", topology, *names)
    print(json.dumps(costs, indent=1))
    splash = {name: sum("splash" in kernel for kernel in cost["kernels"]) for name, cost in costs.items()}
    # Of the control: forward, the gradient of queries, that of keys and values.
    assert splash == {name: 3 if name == CONTROL else 0 for name in names}
    for name, cost in costs.items():
        assert cost["peak_bytes"] > 4 * cost["parameters"], name
        assert cost["flops"] > 0, name
        if topology == "v5e:1x1":
            assert cost["all_reduces"] == 0, name
        elif name in OPTIONS:
            # Every number of every gradient is summed over the chips once for each microbatch: all of a type together.
            assert 1 <= cost["all_reduces"] <= 2 * cost["microbatches"], name
            assert 0 < cost["reduced_elements"] - cost["microbatches"] * cost["parameters"] <= SCALARS, name
        else:
            # Statistics of the batch are summed as well, and where the numbers of a gradient depend on each other,
            # the compiler sums the fewer that they come from.
            assert cost["reduced_elements"] > 0.95 * cost["parameters"], name


@pytest.mark.slow
@needs_libtpu
def test_step_of_tensorflow_compiles_with_libtpu(tmp_path):
    names = OPTIONS[:3]
    files = _run("tensorflow", "lower", str(tmp_path), *names)
    costs = _run("jax", "stablehlo", "v5e:1x1", *files.values())
    print(json.dumps(costs, indent=1))
    for name in names:
        cost = costs[files[name]]
        assert cost["peak_bytes"] > 0, name
        assert not any("splash" in kernel for kernel in cost["kernels"]), name


@pytest.mark.slow
@pytest.mark.skipif(
    not list(importlib.metadata.distributions(name="tensorflow-tpu")), reason="needs the wheel of the extra [tpu-tf]"
)
def test_a_tpu_has_kernels_for_every_operation_of_tensorflow():
    names = (*OPTIONS, *FAMILIES)
    assert _run("tensorflow", "kernels", *names) == {name: [] for name in names}


def _run(backend, *arguments):
    settings = {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]),
        "KERAS_BACKEND": backend,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # libtpu asks no server for the TPU that is not there
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nor whether another process has it
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / f"on_{backend}.py"), *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
