"""Compile a training step for TPUs on a machine without one, and print its memory and operations.

    pip install -e '.[tpu]'
    python -m benchmarks.tpu_compile ViT-S_16 --batch 256 --topology v5e:1x1 v5e:2x4

The step is that of `model.fit` on the JAX backend: AdamW, clipping to a global norm of 1, softmax cross-entropy.
Weights are replicated, the batch is divided among the chips. Each row is one compilation, which takes minutes for a
ViT-S/16 on two cores. Memory and operations are per chip. The compiler's number of operations is followed by a count of
six per multiply-accumulate of the forward pass. Recomputation (`--remat`, or the compiler's own if memory is short)
increases only the compiler's number.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import re
import time
import unittest.mock

# Keras, JAX and libtpu read these at import: they then search for no chip, and several processes can compile at once.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import keras
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import keras_vit
from keras_vit.config.base import REMAT
from keras_vit.models.costs import count_macs

_ARRAY = re.compile(r"\b[a-z]+\d+\w*\[([\d,]*)\]")  # such as bf16[64,192]
_REDUCTION = re.compile(r"^\s*(?:ROOT )?%\S+ = (.+?) (?:all-reduce|all-reduce-start|reduce-scatter)\(", re.MULTILINE)
_KERNEL = re.compile(r'^\s*(?:ROOT )?%([\w-]+).*custom_call_target="tpu_custom_call"', re.MULTILINE)


def main():
    parser = _parser()
    arguments = parser.parse_args()
    if importlib.util.find_spec("libtpu") is None:
        parser.error("the compiler needs libtpu: pip install -e '.[tpu]'")
    for topology in arguments.topology:
        for batch in arguments.batch:
            row = measure(arguments, topology, batch)
            print(json.dumps(row) if arguments.json else _line(row), flush=True)


def measure(arguments, topology, batch):
    """Return one row of the table, a dict, for one topology and one batch size."""
    devices = topology_devices(topology)
    model = build(arguments.model, arguments.image_size, arguments.dtype, arguments.remat, arguments.microbatches)
    images = jax.ShapeDtypeStruct((batch, *model.input_shape[1:]), "float32")
    labels = jax.ShapeDtypeStruct((batch,), "int32")
    row = {
        "topology": topology,
        "batch": batch,
        "remat": arguments.remat,
        "microbatches": arguments.microbatches,
        "counted_flops": 6 * count_macs(model) * batch // len(devices),
    }
    try:
        return row | dataclasses.asdict(compile_step(model, (images, labels), devices))
    except jax.errors.JaxRuntimeError as error:  # the step does not fit into the chip's memory
        return row | {"failure": str(error).splitlines()[0]}


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Cost of one training step on one chip.

    Attributes:
        peak_bytes: peak memory, including weights and batch.
        flops: floating-point operations as the compiler counts them.
        all_reduces: number of sums over all chips, each of one or more arrays.
        reduced_elements: number of elements in the results of these sums.
        kernels: names of the hand-written kernels that are called: Keras's splash attention would be one, and libtpu
            has its own attention kernel for token counts such as 128 and 256.
        seconds: compilation time.
    """

    peak_bytes: int
    flops: float
    all_reduces: int
    reduced_elements: int
    kernels: tuple
    seconds: float


def topology_devices(name):
    """Return the abstract chips of a TPU slice such as `v5e:2x4`, for which libtpu compiles."""
    shape = name.partition(":")[2]
    # By default, libtpu assumes hosts with more than one chip.
    host = {"chips_per_host_bounds": (1, 1, 1)} if shape and set(shape.split("x")) == {"1"} else {}
    return topologies.get_topology_desc(name, platform="tpu", **host).devices


def build(name, image_size=224, dtype="mixed_bfloat16", remat=None, microbatches=1):
    """Return a model of the zoo, compiled with AdamW, clipping and softmax cross-entropy."""
    options = {"remat": remat} if remat else {}
    model = keras_vit.create_model(name, image_size=image_size, dtype=dtype, **options)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-3, weight_decay=1e-4, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        microbatches=microbatches,
    )
    return model


def compile_step(model, batch, devices):
    """Compile the training step of a model for a TPU.

    Args:
        model: a keras model after `compile`, on the JAX backend.
        batch: (images, labels) as `jax.ShapeDtypeStruct`, for all chips together.
        devices: of `topology_devices`.

    Returns:
        A `StepCost`.
    """
    return cost_of(*compiled_step(model, batch, devices))


def compiled_step(model, batch, devices):
    """Return the training step, compiled for a TPU, and the compilation time in seconds."""
    mesh = Mesh(np.array(devices), ("data",))
    replicated, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    state = _abstract(step_state(model, batch), replicated)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, jax.tree.map(lambda _: replicated, state)))
    start = time.perf_counter()
    with platform_of(devices):
        traced = step.trace(state, _abstract(batch, divided))
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    return compiled, time.perf_counter() - start


def cost_of(compiled, seconds):
    """Return the `StepCost` of a compiled step."""
    text = compiled.as_text()
    reductions = _REDUCTION.findall(text)
    return StepCost(
        peak_bytes=compiled.memory_analysis().peak_memory_in_bytes,
        flops=compiled.cost_analysis()["flops"],
        all_reduces=len(reductions),
        reduced_elements=sum(_elements(results) for results in reductions),
        kernels=tuple(sorted(_KERNEL.findall(text))),
        seconds=seconds,
    )


def step_state(model, batch):
    """Build optimizer and metrics of a compiled model; return the state that its training step takes and returns."""
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=batch)
    return model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )


@contextlib.contextmanager
def platform_of(devices):
    """Make `jax.devices()` return these devices while a function is traced, as on a TPU."""
    with unittest.mock.patch("jax.devices", lambda *_: list(devices)):
        yield


def _abstract(arrays, sharding):
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), arrays)


def _elements(results):
    shapes = _ARRAY.findall(results)
    return sum(math.prod(int(size) for size in shape.split(",") if size) for shape in shapes)


def _line(row):
    head = f"{row['topology']:8} batch {row['batch']:<6} "
    if row["remat"]:
        head += f"remat {row['remat']} "
    if row["microbatches"] > 1:
        head += f"in {row['microbatches']} microbatches "
    if "failure" in row:
        return f"{head}{row['failure']}"
    return (
        f"{head}peak {row['peak_bytes'] / 1e9:.2f} GB, {row['flops'] / 1e12:.3f} TFLOP "
        f"(counted by hand {row['counted_flops'] / 1e12:.3f}), {row['all_reduces']} all-reduces of "
        f"{row['reduced_elements']:,} elements, kernels: {', '.join(row['kernels']) or 'none'}, "
        f"{row['seconds']:.0f} s to compile"
    )


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="benchmarks.tpu_compile"
    )
    parser.add_argument("model", help="a name of keras-vit list, such as ViT-S_16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch", type=int, nargs="+", default=[256], help="images per step on all chips together")
    parser.add_argument("--topology", nargs="+", default=["v5e:1x1"], help="such as v5e:1x1 v5e:2x4 v6e:1x1 v4:2x2x1")
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--remat", choices=REMAT, help="what the backward pass computes again")
    parser.add_argument("--microbatches", type=int, default=1, help="microbatches per batch")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    return parser


if __name__ == "__main__":
    main()
