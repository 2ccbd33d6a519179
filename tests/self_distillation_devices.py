"""Trains by self-distillation on JAX, on one device and on four; run as a script in a process of its own.

`python self_distillation_devices.py FILE` writes {method: largest relative difference of losses and weights} as JSON.
"""

import json
import pathlib
import sys

import numpy as np
from device_runs import small_vit, split_cpu, weights_of


def train(devices, method):
    import keras

    import keras_vit

    rng = np.random.default_rng(0)
    shapes = {"global": (16, 2, 16, 16, 3), "local": (16, 2, 8, 8, 3)}
    crops = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    with keras_vit.distribution("data_parallel", devices=[f"cpu:{number}" for number in range(devices)]):
        keras.utils.set_random_seed(0)
        student = keras_vit.resize(small_vit(patch_size=4, include_top=False), "any")
        sizes = {"hidden_dim": 16, "bottleneck_dim": 8, "freeze_epochs": 0}
        model = keras_vit.SelfDistillation(student, 16, method=method, seed=3, **sizes)
        model.compile(keras.optimizers.SGD(0.1), epochs=1, steps_per_epoch=2)
        history = model.fit(crops, batch_size=8, shuffle=False, verbose=0).history
        return {**weights_of(model), **{name: np.array(values) for name, values in history.items()}}


def difference(one, four):
    return max(float(np.abs(four[name] - one[name]).max() / (np.abs(one[name]).max() + 1e-3)) for name in one)


if __name__ == "__main__":
    split_cpu(4)
    found = {method: difference(train(1, method), train(4, method)) for method in ("dinov2", "dinov3")}
    pathlib.Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
