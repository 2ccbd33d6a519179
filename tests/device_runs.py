"""Trains small models on several devices. Run as a script in a process of its own, for devices are set up once.

`python device_runs.py FILE RUN...` writes the weights after each run into FILE (.npz), under `run/path of the weight`.
A run is `devices:optimizer:kind`; the devices are a row of DEVICES.
"""

import json
import os
import sys

# name -> name and options of keras_vit.distribution
DEVICES = {
    "one": ("one", {}),
    "unclipped": ("one", {}),
    "mirrored2": ("mirrored", {"devices": ["CPU:0", "CPU:1"]}),
    "mirrored4": ("mirrored", {"devices": ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]}),
    "multi_worker": ("multi_worker", {}),
    "data_parallel": ("data_parallel", {}),
    "model_parallel": ("model_parallel", {"mesh": (4, 2)}),
    "model_parallel22": ("model_parallel", {"mesh": (2, 2)}),
}
STEPS, BATCH, CLASSES = 8, 16, 3


def split_cpu(count):
    """Gives this process `count` devices; before TensorFlow or JAX is used."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def small_vit(name="small", **changes):
    import keras_vit

    config = {
        "image_size": 16, "patch_size": 8, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24,
        "classes": CLASSES, **changes,
    }  # fmt: skip
    return keras_vit.VisionTransformer(keras_vit.ViTConfig(name=name, **config))


def with_new_head(model_class):
    import keras

    inner = small_vit(include_top=False)
    return model_class(inner.input, keras.layers.Dense(CLASSES, name="new_head")(inner(inner.input)))


def fill(model, seed=0):
    """Gives every weight a value that depends on its place alone, whatever backend and strategy."""
    import numpy as np

    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=weight.shape).astype("float32") / 4 for weight in model.weights])
    return model


def make_images(count=STEPS * BATCH):
    import numpy as np

    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 16, 16, 3)).astype("float32"), rng.integers(0, CLASSES, count)


def dataset(count=STEPS * BATCH, batch=BATCH, shard=(0, 1)):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(make_images(count)).batch(batch, drop_remainder=count % batch == 0)
    rows = slice(*(part * batch // shard[1] for part in (shard[0], shard[0] + 1)))
    data = data if shard == (0, 1) else data.map(lambda x, y: (x[rows], y[rows]))
    data.rows_per_batch = batch // shard[1]  # as in keras_vit.data
    return data


def optimizer(name, **changes):
    import keras

    common = {"global_clipnorm": 0.05, "gradient_accumulation_steps": 2, "use_ema": True, "ema_momentum": 0.9}
    common |= changes
    if name == "sgd":
        return keras.optimizers.SGD(1.0, momentum=0.9, **common)
    return keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-6, **common)


def compiled(model, optimizer_, **arguments):
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"steps_per_execution": 2, "metrics": ["accuracy"], **arguments}
    model.compile(optimizer_, loss, **arguments)
    return model


def weights_of(model):
    """Weights, and what the optimizer holds, by name."""
    from keras_vit.training.workers import value_of

    named = {weight.path: weight for weight in model.weights}
    named |= {f"optimizer/{number}": variable for number, variable in enumerate(model.optimizer.variables)}
    return {path: value_of(weight) for path, weight in named.items()}


def train(devices, optimizer_name, kind):
    """The run of the acceptance: eight steps under everything at once."""
    import keras_vit

    name, options = DEVICES[devices]
    with keras_vit.distribution(name, **options) as selected:
        is_shared = selected.workers > 1 and selected.strategy is None  # between processes of JAX

        def data(*of):
            return selected.dataset(lambda shard: dataset(*of, shard)) if is_shared else dataset(*of)

        model = with_new_head(keras_vit.Model) if kind == "headed" else small_vit()
        if kind == "lora":
            keras_vit.add_lora(model, rank=2)
        model = fill(model)
        clipping = {"global_clipnorm": None} if devices == "unclipped" else {}
        model = compiled(model, optimizer(optimizer_name, **clipping), microbatches=2 if kind == "microbatches" else 1)
        history = model.fit(data(STEPS * BATCH, BATCH), shuffle=False, verbose=0).history
        found = {**weights_of(model), "loss": history["loss"], "accuracy": history["accuracy"]}
        if kind == "measured":  # 37 images are no multiple of the devices
            found |= model.evaluate(data(37, 8), verbose=0, return_dict=True)
            found["predictions"] = model.predict(data(37, 8), verbose=0)
    if name.startswith("model_parallel"):
        for weight in model.weights:
            found[f"part of {weight.path}"] = weight.value.addressable_shards[0].data.shape
    return found


def main(file, runs):
    import numpy as np

    if "KERAS_DISTRIBUTION_NUM_PROCESSES" in os.environ:
        import keras

        keras.distribution.initialize()
    elif "TF_CONFIG" not in os.environ:
        split_cpu(8 if os.environ.get("KERAS_BACKEND") == "jax" else 4)
    results = {}
    for run in runs:
        results |= {f"{run}/{path}": value for path, value in train(*run.split(":")).items()}
    np.savez(file, **results)
    print(json.dumps({"done": runs}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
