"""keras_vit.distribution: names, choices, errors and data; training under it is in test_device_equality.py."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from faults import for_each
from replica_process import start, wait, worker_environments

import keras_vit
from keras_vit.training import distribution as module

only_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies of tf.distribute")


def _batches(shard):
    """What `train_pipeline` gives: the rows of one worker of each of two batches of 8."""
    index, count = shard
    rows = 8 // count
    batches = [np.arange(batch * 8, batch * 8 + 8)[index * rows : (index + 1) * rows] for batch in range(2)]
    return tf.data.Dataset.from_tensor_slices((np.stack(batches), np.stack(batches) * 10))


def test_one_device():
    with keras_vit.distribution("one") as devices:
        assert (devices.name, devices.replicas, devices.worker, devices.workers) == ("one", 1, 0, 1)
        assert devices.is_chief and devices.strategy is None
        rows = [x.numpy().tolist() for x, _ in devices.dataset(_batches)]
    assert rows == [list(range(8)), list(range(8, 16))]


@only_tensorflow
def test_mirrored_is_the_strategy_of_the_scope_and_no_longer_outside():
    with keras_vit.distribution("mirrored", devices=["CPU:0"]) as devices:
        assert tf.distribute.get_strategy() is devices.strategy
        assert isinstance(devices.strategy, tf.distribute.MirroredStrategy)
        assert (devices.name, devices.replicas, devices.workers) == ("mirrored", 1, 1)
    assert not tf.distribute.has_strategy()


@only_tensorflow
@pytest.mark.parametrize(
    ("cluster", "tpus", "gpus", "expected"),
    [
        ({"worker": ["a:1", "b:1"]}, 1, 4, "multi_worker"),
        (None, 1, 4, "tpu"),
        (None, 0, 4, "mirrored"),
        (None, 0, 1, "one"),
        (None, 0, 0, "one"),
    ],
)
def test_auto_takes_what_there_is(monkeypatch, cluster, tpus, gpus, expected):
    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster} if cluster else {}))
    found = {"TPU": [None] * tpus, "GPU": [None] * gpus}
    monkeypatch.setattr(tf.config, "list_physical_devices", found.get)
    monkeypatch.setattr(tf.config, "list_logical_devices", found.get)
    assert module._choose() == expected


@only_tensorflow
def test_tpu_on_a_machine_without_one(monkeypatch):
    monkeypatch.delenv("TPU_NAME", raising=False)
    sentence = r"^distribution\('tpu'\) needs a TPU, but none was found.*$"
    with pytest.raises(keras_vit.training.MissingDevicesError, match=sentence):
        with keras_vit.distribution("tpu"):
            pass


@only_tensorflow
@for_each(
    ("name", "options", "message"),
    [
        ("mirored", {}, "name must be one of"),
        ("data_parallel", {}, "name='data_parallel' needs KERAS_BACKEND=jax"),
        ("model_parallel", {"mesh": (4, 2)}, "name='model_parallel' needs KERAS_BACKEND=jax"),
        ("mirrored", {"mesh": (4, 2)}, r"among \['devices'\]; got \['mesh'\]"),
        ("one", {"devices": []}, r"among \[\]; got \['devices'\]"),
    ],
)
def test_wrong_names_and_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        with keras_vit.distribution(name, **options):
            pass


@pytest.mark.parametrize(("rows", "expected"), [(4, [[0, 1], [2, 3]]), (3, [[0, 1], [2]]), (1, [[0], []])])
def test_rows_of_a_worker_are_dealt_to_its_replicas(rows, expected):
    data = tf.data.Dataset.from_tensors((np.arange(rows), np.arange(rows) * 10))
    parts = [(x.numpy().tolist(), y.numpy().tolist()) for x, y in module._rows_per_replica(data, 2)]
    assert parts == [(part, [10 * x for x in part]) for part in expected]


_JAX = """
import os
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import keras, keras_vit
from device_runs import small_vit

def error(name, **options):
    try:
        with keras_vit.distribution(name, **options):
            return None
    except (ValueError, keras_vit.training.MissingDevicesError) as error:
        return str(error)

found = {}
with keras_vit.distribution() as devices:
    found["auto"] = [devices.name, devices.replicas, devices.workers, devices.is_chief]
found["restored"] = keras.distribution.distribution() is None
with keras_vit.distribution("data_parallel", devices=["cpu:0", "cpu:1"]) as devices:
    found["chosen"] = devices.replicas
with keras_vit.distribution("model_parallel", mesh=(1, 4)) as devices:
    model = small_vit(hidden_dim=14, num_heads=2)
    found["replicas"] = devices.replicas
    found["parts"] = {w.path: list(w.value.addressable_shards[0].data.shape) for w in model.weights}
found["mesh"] = error("model_parallel", mesh=(3, 2))
found["tensorflow"], found["tpu"] = error("mirrored"), error("tpu")
import json
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    pytest.importorskip("jax")
    script = tmp_path_factory.mktemp("jax") / "script.py"
    script.write_text(_JAX, encoding="utf-8")
    started = start(script, tmp_path_factory.mktemp("output") / "found")
    wait([started])
    return json.loads(started[1].read_text(encoding="utf-8").splitlines()[-1])


@pytest.mark.slow
def test_jax_takes_all_devices(on_jax):
    assert on_jax["auto"] == ["data_parallel", 4, 1, True]
    assert on_jax["chosen"] == 2
    assert on_jax["restored"]


@pytest.mark.slow
def test_model_parallel_leaves_what_the_devices_do_not_divide(on_jax):
    parts = on_jax["parts"]
    assert on_jax["replicas"] == 1  # one part of the batch
    assert parts["block_00/attention/qkv/kernel"] == [14, 42]  # 42 / 4 is no whole number
    assert parts["block_00/mlp/dense1/kernel"] == [14, 6]  # of (14, 24)
    assert parts["block_00/mlp/dense2/kernel"] == [6, 14]


@pytest.mark.slow
def test_jax_errors(on_jax):
    assert on_jax["mesh"] == "mesh must multiply to the number of devices; got mesh=(3, 2), 4 devices"
    assert "'mirrored', which requires KERAS_BACKEND=tensorflow" in on_jax["tensorflow"]
    assert on_jax["tpu"].startswith("distribution('tpu') needs a TPU, but none was found")


_WORKER = """
import json
import numpy as np, tensorflow as tf
import keras_vit
from device_runs import compiled, dataset, fill, make_images, optimizer, small_vit

def rows_of(shard):  # of batches 0..7 and 8..15
    index, count = shard
    rows = 8 // count
    batches = [np.arange(b * 8, b * 8 + 8)[index * rows : (index + 1) * rows] for b in range(2)]
    return tf.data.Dataset.from_tensor_slices(np.stack(batches))

def images_of(shard):
    x, y = (tf.constant(array) for array in make_images(16))
    return rows_of(shard).map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows)))

def trained(data):
    model = compiled(fill(small_vit()), optimizer("sgd"))
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    return [*model.get_weights(), history["loss"], history["accuracy"]]

with keras_vit.distribution() as devices:
    data = devices.dataset(rows_of)
    rows = [tf.concat(devices.strategy.experimental_local_results(x), 0).numpy().tolist() for x in data]
    whole, shared = trained(dataset(16, 8)), trained(devices.dataset(images_of))
difference = max(float(np.max(np.abs(np.subtract(a, b)))) for a, b in zip(whole, shared))
about = [devices.name, devices.replicas, devices.worker, devices.workers, devices.is_chief, rows]
print(json.dumps([difference, about]))
"""


@only_tensorflow
@pytest.mark.slow
def test_workers_read_their_rows_and_train_as_on_the_whole(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_WORKER, encoding="utf-8")
    environments = worker_environments(2)
    started = [start(script, tmp_path / f"{i}", **environment) for i, environment in enumerate(environments)]
    wait(started)
    found = [json.loads(output.read_text(encoding="utf-8").splitlines()[-1]) for _, output in started]
    (first, about_first), (second, about_second) = found
    assert about_first == ["multi_worker", 2, 0, 2, True, [[0, 1, 2, 3], [8, 9, 10, 11]]]
    assert about_second == ["multi_worker", 2, 1, 2, False, [[4, 5, 6, 7], [12, 13, 14, 15]]]
    assert max(first, second) < 1e-6
