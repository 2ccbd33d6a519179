"""What a TPU gets of the steps of small_steps.py by way of JAX, printed as JSON.

With KERAS_BACKEND=jax and JAX_PLATFORMS=cpu:

    python on_jax.py lower NAME...                 the custom calls in each step
    python on_jax.py compile TOPOLOGY NAME...      what libtpu's compiler says of each step
    python on_jax.py stablehlo TOPOLOGY FILE...    what it says of the files that on_tensorflow.py wrote
"""

import dataclasses
import json
import pathlib
import re
import sys
import types

import jax
import numpy as np
from small_steps import STEPS

from benchmarks.tpu_compile import abstract, compile_step, cost_of, platform_of, step_state, topology_devices

_CUSTOM_CALL = re.compile(r"stablehlo\.custom_call @([\w.$]+)")


def lower(*names):
    return {name: _custom_calls(STEPS[name]()) for name in names}


def compile_(topology, *names):
    return {name: _cost(STEPS[name](), topology_devices(topology)) for name in names}


def stablehlo(topology, *files):
    return {file: dataclasses.asdict(cost_of(_compiled(file, topology_devices(topology)), 0.0)) for file in files}


def _custom_calls(step):
    model, batch = step.model, _batch(step)
    state = tuple([abstract(variable) for variable in part] for part in step_state(model, batch))
    with platform_of([types.SimpleNamespace(platform="tpu")]):
        exported = jax.export.export(jax.jit(model.train_step), platforms=["tpu"])(state, batch)
    return sorted(set(_CUSTOM_CALL.findall(exported.mlir_module())))


def _cost(step, devices):
    cost = dataclasses.asdict(compile_step(step.model, _batch(step), devices))
    parameters = sum(int(np.prod(weight.shape)) for weight in step.model.trainable_weights)
    return {**cost, "parameters": parameters, "microbatches": getattr(step.model, "_microbatches", 1)}


def _batch(step):
    return jax.ShapeDtypeStruct(*step.images), jax.ShapeDtypeStruct(*step.labels)


def _compiled(file, devices):
    """A serialised StableHLO module, compiled. JAX has no public way in for it."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir.dialects import hlo

    with mlir.make_ir_context() as context:
        module = hlo.deserialize_portable_artifact(context, pathlib.Path(file).read_bytes())
        _drop_copies(module)
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        executable = devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)
    return _Executable(executable)


def _drop_copies(module):
    """TensorFlow 2.21 leaves copies of another dialect between the results of a step."""
    from jax._src.lib.mlir import ir

    copies = []

    def collect(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


@dataclasses.dataclass
class _Executable:
    """A compiled program under the names that jax.stages.Compiled gives to its properties."""

    program: object

    def as_text(self):
        return "\n".join(module.to_string() for module in self.program.hlo_modules())

    def memory_analysis(self):
        return self.program.get_compiled_memory_stats()

    def cost_analysis(self):
        return self.program.cost_analysis()


if __name__ == "__main__":
    actions = {"lower": lower, "compile": compile_, "stablehlo": stablehlo}
    print(json.dumps(actions[sys.argv[1]](*sys.argv[2:])))
