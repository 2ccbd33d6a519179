"""Compile a step for TPUs on a machine without one, and print its memory, operations and exchanges.

    pip install -e '.[tpu]'
    python -m benchmarks.tpu_compile ViT-S_16 --batch 256 --topology v5e:1x1 v5e:2x4

The training step is that of `model.fit` on the JAX backend: AdamW, clipping to a global norm of 1, softmax
cross-entropy. Weights are replicated, the batch is divided among the chips; `--mesh 4 2` divides the batch by 4 and the
weights by 2, as `keras_vit.distribution("model_parallel", mesh=(4, 2))`. Each row is one compilation, which takes
minutes for a ViT-S/16 on two cores, and less with `--scan-layers`. All numbers are per chip. The compiler counts the
operations of a loop once, so its number is too small with `--scan-layers`; recomputation (`--remat`, or the compiler's
own if memory is short) increases it. The number counted by hand is six per multiply-accumulate of the forward pass, or
two for inference. benchmarks/tpu_table.py makes a table for all models.
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

from keras_vit.compat.initial_values import build_deferred
from keras_vit.compat.jax_fit import ViTModelParallel
from keras_vit.config.base import REMAT
from keras_vit.models import build_model
from keras_vit.models.costs import count_macs
from keras_vit.variants import VARIANTS

WORK = {"training": 6, "inference": 2}  # work -> operations per multiply-accumulate of the forward pass

_ARRAY = re.compile(r"\b([a-z]+)(\d+)\w*\[([\d,]*)\]")  # such as bf16[64,192]
_EXCHANGE = re.compile(
    r"^\s*(?:ROOT )?%\S+ = (.+?) (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)(?:-start)?\(",
    re.MULTILINE,
)
_KERNEL = re.compile(r'^\s*(?:ROOT )?%([\w-]+).*custom_call_target="tpu_custom_call"', re.MULTILINE)


def main():
    parser = _parser()
    arguments = parser.parse_args()
    if importlib.util.find_spec("libtpu") is None:
        parser.error("the compiler needs libtpu: pip install -e '.[tpu]'")
    options = {"remat": arguments.remat} if arguments.remat else {}
    options |= {"scan_layers": True} if arguments.scan_layers else {}
    options |= {"image_size": arguments.image_size} if arguments.image_size else {}
    for topology in arguments.topology:
        for batch in arguments.batch:
            model = build(arguments.model, arguments.work, arguments.microbatches, **options)
            row = {"topology": topology, "batch": batch, **options, "microbatches": arguments.microbatches}
            row |= measure(model, arguments.work, topology, batch, arguments.mesh)
            print(json.dumps(row) if arguments.json else _line(row), flush=True)


def measure(model, work, topology, batch, mesh=None):
    """Return the costs of one step as a dict, or its failure.

    Args:
        model: of `build`.
        work: `training` or `inference`.
        topology: such as `v5e:2x4`.
        batch: images of a step, on all chips together.
        mesh: as in `distribution("model_parallel")`, or None.
    """
    devices = topology_devices(topology)
    images = jax.ShapeDtypeStruct((batch, *model.input_shape[1:]), "float32")
    labels = jax.ShapeDtypeStruct((batch,), "int32")
    counted = {"counted_flops": WORK[work] * count_macs(model) * batch // len(devices)}
    try:
        return counted | dataclasses.asdict(cost_of(*compiled_step(model, (images, labels), devices, work, mesh)))
    except jax.errors.JaxRuntimeError as error:  # the step does not fit into the chip's memory
        return counted | {"failure": str(error).splitlines()[0]}


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Cost of one step on one chip.

    Attributes:
        peak_bytes: peak memory, including weights and batch.
        flops: floating-point operations as the compiler counts them.
        bytes_accessed: bytes that the operations read and write, as the compiler counts them.
        all_reduces: number of sums over all chips, each of one or more arrays.
        reduced_elements: number of elements in the results of these sums.
        exchanges: number of operations that exchange data between chips, the sums among them.
        exchanged_bytes: bytes of their results.
        kernels: names of the hand-written kernels that are called: Keras's splash attention would be one, and libtpu
            has its own attention kernel for token counts such as 128 and 256.
        seconds: compilation time.
    """

    peak_bytes: int
    flops: float
    bytes_accessed: float
    all_reduces: int
    reduced_elements: int
    exchanges: int
    exchanged_bytes: int
    kernels: tuple
    seconds: float


def topology_devices(name):
    """Return the abstract chips of a TPU slice such as `v5e:2x4`, for which libtpu compiles."""
    shape = name.partition(":")[2]
    # By default, libtpu assumes hosts with more than one chip.
    host = {"chips_per_host_bounds": (1, 1, 1)} if shape and set(shape.split("x")) == {"1"} else {}
    return topologies.get_topology_desc(name, platform="tpu", **host).devices


def build(name, work="training", microbatches=1, **options):
    """Return a model of the zoo without values; for training, compiled with AdamW, clipping and cross-entropy.

    Args:
        name: one of `keras_vit.list_models()`.
        work: `training` (float32 weights) or `inference` (bfloat16 weights).
        microbatches: as in `keras_vit.Model.compile`.
        **options: other fields of the config.
    """
    dtype = "mixed_bfloat16" if work == "training" else "bfloat16"
    config = VARIANTS[name].reference.replace(dtype=dtype, **options)
    model, _ = build_deferred(lambda: build_model(config))
    if work == "training":
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


def compiled_step(model, batch, devices, work="training", mesh=None):
    """Return the step, compiled for a TPU, and the compilation time in seconds."""
    mesh = Mesh(np.array(devices).reshape(mesh or (len(devices), 1)), ("data", "model"))
    state = _sharded(step_state(model, batch, work), model, mesh)
    divided = NamedSharding(mesh, PartitionSpec("data"))
    images, labels = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=divided), batch)
    if work == "training":
        outputs = (None, tuple([variable.sharding for variable in part] for part in state))
        step, arguments = jax.jit(model.train_step, donate_argnums=0, out_shardings=outputs), (state, (images, labels))
    else:
        step = jax.jit(lambda state, images: model.stateless_call(*state, images, training=False)[0])
        arguments = (state, images)
    start = time.perf_counter()
    with platform_of(devices):
        traced = step.trace(*arguments)
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    return compiled, time.perf_counter() - start


def cost_of(compiled, seconds):
    """Return the `StepCost` of a compiled step."""
    text, costs = compiled.as_text(), compiled.cost_analysis()
    exchanges = _EXCHANGE.findall(text)
    sums = [results for results, kind in exchanges if kind in ("all-reduce", "reduce-scatter")]
    return StepCost(
        peak_bytes=compiled.memory_analysis().peak_memory_in_bytes,
        flops=costs["flops"],
        bytes_accessed=costs["bytes accessed"],
        all_reduces=len(sums),
        reduced_elements=sum(_sizes(results)[0] for results in sums),
        exchanges=len(exchanges),
        exchanged_bytes=sum(_sizes(results)[1] for results, _ in exchanges),
        kernels=tuple(sorted(_KERNEL.findall(text))),
        seconds=seconds,
    )


def step_state(model, batch, work="training"):
    """Return the variables that the step takes, in the lists in which it takes them.

    Optimizer and metrics of a model for training are built, the slots of the optimizer without values.
    """
    if work != "training":
        return [model.trainable_variables, model.non_trainable_variables]
    build_deferred(lambda: model.optimizer.build(model.trainable_variables))
    model._symbolic_build(data_batch=batch)
    variables = [model.trainable_variables, model.non_trainable_variables]
    return [*variables, model.optimizer.variables, model.metrics_variables]


@contextlib.contextmanager
def platform_of(devices):
    """Make `jax.devices()` return these devices while a function is traced, as on a TPU."""
    with unittest.mock.patch("jax.devices", lambda *_: list(devices)):
        yield


def abstract(variable, sharding=None):
    """Return shape and dtype of a variable, which may have no value."""
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=sharding)


def _sharded(state, model, mesh):
    """Return the abstract state; `distribution("model_parallel")` says how the weights and their slots are divided."""
    names = [f"chip:{number}" for number in range(mesh.size)]
    rules = ViTModelParallel(keras.distribution.DeviceMesh(mesh.devices.shape, mesh.axis_names, names))
    weights = {variable.path.replace("/", "_"): variable for variable in model.variables}

    def sharding(variable):
        weight = weights.get(variable.name.rpartition("_")[0], variable)  # a slot has the name of its weight
        layout = rules.get_variable_layout(weight if weight.shape == variable.shape else variable)
        return NamedSharding(mesh, PartitionSpec(*layout.axes))

    return tuple([abstract(variable, sharding(variable)) for variable in part] for part in state)


def _sizes(results):
    """Return the number of elements and of bytes of the arrays in a line of the compiled program."""
    elements = bytes_ = 0
    for kind, bits, shape in _ARRAY.findall(results):
        count = math.prod(int(size) for size in shape.split(",") if size)
        elements, bytes_ = elements + count, bytes_ + count * (1 if kind == "pred" else max(int(bits) // 8, 1))
    return elements, bytes_


def _line(row):
    head = f"{row['topology']:8} batch {row['batch']:<6} "
    if row.get("remat"):
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
    parser.add_argument("--work", choices=WORK, default="training")
    parser.add_argument("--image-size", type=int, help="None is that of the model")
    parser.add_argument("--batch", type=int, nargs="+", default=[256], help="images per step on all chips together")
    parser.add_argument("--topology", nargs="+", default=["v5e:1x1"], help="such as v5e:1x1 v5e:2x4 v6e:1x1 v4:2x2x1")
    parser.add_argument("--mesh", type=int, nargs=2, help="parts of the batch, parts of the weights")
    parser.add_argument("--remat", choices=REMAT, help="what the backward pass computes again")
    parser.add_argument("--scan-layers", action="store_true", help="the blocks as one loop")
    parser.add_argument("--microbatches", type=int, default=1, help="microbatches per batch")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    return parser


if __name__ == "__main__":
    main()
