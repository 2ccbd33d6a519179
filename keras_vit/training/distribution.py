"""distribution: select the devices on which a model is built and trained, by name."""

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import typing
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_vit import checks
from keras_vit.compat.jax_fit import ViTModelParallel, rows_of_process
from keras_vit.compat.tensorflow_fit import mirrored_strategy
from keras_vit.training import workers

_NO_TPU = "distribution('tpu') needs a TPU, but none was found (with TensorFlow, set address=... or TPU_NAME)"


class MissingDevicesError(RuntimeError):
    """Report that the requested devices do not exist."""


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices that `distribution` selected.

    Attributes:
        name: name of the distribution; for "auto", the one that was chosen.
        replicas: number of parts that every batch is split into: the number of devices, except for `model_parallel`,
            where it is the first number of `mesh`.
        worker: index of this process among the processes of the run.
        workers: number of these processes.
        strategy: the `tf.distribute.Strategy`, or None.
    """

    name: str
    replicas: int = 1
    worker: int = 0
    workers: int = 1
    strategy: typing.Any = None

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files."""
        return self.worker == 0

    def dataset(self, make: Callable[[tuple[int, int]], typing.Any]) -> typing.Any:
        """Return the data for `model.fit`; each worker reads only its own rows.

        Args:
            make: function of `shard`, (index, count), that returns a batched `tf.data.Dataset` with the rows
                [index * B / count, (index + 1) * B / count) of every batch of B rows, as `train_pipeline` does. In
                several processes on JAX, only `eval_pipeline` may return a last batch with fewer rows.
        """
        if self.workers == 1:
            return make((0, 1))
        if self.strategy is None:
            data = make(rows_of_process(keras.distribution.distribution()))
            data.own_rows = getattr(data, "rows_per_batch", keras.tree.flatten(data.element_spec)[0].shape[0])
            return data
        made = []

        def of_pipeline(context):
            made.append(make((context.input_pipeline_id, context.num_input_pipelines)))
            return _rows_per_replica(made[-1], self.replicas // context.num_input_pipelines)

        distributed = self.strategy.distribute_datasets_from_function(of_pipeline)
        distributed.class_names = getattr(made[0], "class_names", None)
        return distributed


@contextlib.contextmanager
def distribution(name: str = "auto", **options: Any) -> Iterator[Devices]:
    """Select devices for building, compiling and training models in this context.

    Models that are built in the context train on the selected devices with `model.fit`. With several devices, use
    `keras_vit.Model(inputs, outputs)` for layers around a model of the package: `keras.Model` has bugs there.

    Args:
        name: one of
            `auto`: on TensorFlow, `multi_worker` if TF_CONFIG describes a cluster, else `tpu` if there is a TPU, else
            `mirrored` if there are several GPUs; on JAX, `data_parallel` if there are several devices; else `one`;
            `one`: the default device;
            `mirrored` (TensorFlow): the devices of one machine; `devices=["GPU:0", "GPU:1"]` selects some of them;
            `multi_worker` (TensorFlow): several processes, described by TF_CONFIG; enter it before TensorFlow
            computes anything;
            `tpu`: all cores of a TPU; on TensorFlow, `address` is its name or address; on JAX, the same as
            `data_parallel`;
            `data_parallel` (JAX): a copy of the weights on every device; `devices` selects from
            `keras.distribution.list_devices()`;
            `model_parallel` (JAX): `mesh=(4, 2)` splits the batch into 4 parts and the weights into 2; also `devices`.
            On JAX, `keras.distribution.initialize()`, called first, joins several processes. `devices` and `mesh` then
            cover all processes. Each process must call `fit`, `evaluate` and `predict` in the context, with data from
            `Devices.dataset`.
        **options: the options listed above for the name.

    Yields:
        `Devices`.

    Raises:
        ValueError: on an unknown name or option, a name of another backend, or devices that do not give each process
            an equal part of a batch.
        MissingDevicesError: if there is no TPU.
    """
    checks.check_choice("name", name, DISTRIBUTIONS)
    if name == "auto":
        name = _choose()
    make, backends = _DISTRIBUTIONS[name]
    if backends and keras.backend.backend() not in backends:
        raise ValueError(f"name={name!r} needs KERAS_BACKEND={' or '.join(backends)}; got {keras.backend.backend()}")
    known = list(inspect.signature(make).parameters)
    if not set(options) <= set(known):
        raise ValueError(f"options of distribution({name!r}) must be among {known}; got {sorted(options)}")
    strategy = make(**options)
    if strategy is None:
        yield Devices(name)
    elif keras.backend.backend() == "jax":
        rows_of_process(strategy)
        with strategy.scope():
            yield Devices(name, strategy.num_model_replicas, *workers.place(None))
    else:
        worker, worker_count = workers.place(strategy)
        with strategy.scope():
            yield Devices(name, strategy.num_replicas_in_sync, worker, worker_count, strategy)


def _choose():
    backend = keras.backend.backend()
    if backend == "jax":
        return "data_parallel" if len(keras.distribution.list_devices()) > 1 else "one"
    if backend != "tensorflow":
        return "one"
    if json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster"):
        return "multi_worker"
    if _has_tpu():
        return "tpu"
    return "mirrored" if len(tf.config.list_logical_devices("GPU")) > 1 else "one"


def _has_tpu():
    return bool(tf.config.list_physical_devices("TPU") or os.environ.get("TPU_NAME"))


@functools.cache  # a second strategy in one process reconnects, which the other workers interpret as a crash
def _multi_worker():
    return tf.distribute.MultiWorkerMirroredStrategy()


def _tpu(address=None):
    if keras.backend.backend() == "jax":
        if address is not None:
            raise ValueError(f"address is for the tensorflow backend, as JAX needs none; got address={address!r}")
        if not keras.distribution.list_devices()[0].startswith("tpu"):
            raise MissingDevicesError(_NO_TPU)
        return _data_parallel()
    if address is None and not _has_tpu():
        raise MissingDevicesError(_NO_TPU)
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address or os.environ.get("TPU_NAME") or "local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _data_parallel(devices=None):
    return keras.distribution.DataParallel(devices=_listed(devices), auto_shard_dataset=False)


def _listed(devices):
    """Return the names of the devices; if None, of all, sorted by process, as each reads consecutive rows."""
    import jax

    everywhere = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return [f"{device.platform}:{device.id}" for device in everywhere] if devices is None else list(devices)


def _model_parallel(mesh=None, devices=None):
    devices = _listed(devices)
    mesh = checks.check_pair("mesh", mesh) if mesh is not None else (len(devices), 1)
    if mesh[0] * mesh[1] != len(devices):
        raise ValueError(f"mesh must multiply to the number of devices; got mesh={mesh}, {len(devices)} devices")
    return ViTModelParallel(keras.distribution.DeviceMesh(mesh, ["data", "model"], devices))


# name -> function from the options to a strategy or None, and its backends (none: any)
_DISTRIBUTIONS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "one": (lambda: None, ()),
    "mirrored": (mirrored_strategy, ("tensorflow",)),
    "multi_worker": (_multi_worker, ("tensorflow",)),
    "tpu": (_tpu, ("tensorflow", "jax")),
    "data_parallel": (_data_parallel, ("jax",)),
    "model_parallel": (_model_parallel, ("jax",)),
}
DISTRIBUTIONS = ("auto", *_DISTRIBUTIONS)


def _rows_per_replica(dataset, replicas):
    """Split each batch of a worker into one batch per replica of the worker."""
    if replicas == 1:
        return dataset

    def parts(*batch):
        size = -(-tf.shape(tf.nest.flatten(batch)[0])[0] // replicas)
        part = lambda i: tf.nest.map_structure(lambda x: x[i * size : (i + 1) * size], batch)  # noqa: E731
        return tf.data.Dataset.range(replicas).map(lambda i: part(tf.cast(i, tf.int32)))

    return dataset.flat_map(parts)
