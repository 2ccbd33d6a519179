"""What tests/compat/test_fit.py compares: each case trains on one device and on two replicas.

replica_cases.py runs them.
"""

import pathlib
import tempfile

from device_runs import CLASSES, compiled, dataset, fill, make_images, small_vit, weights_of


def tiny():
    """Compiled in a quarter of a ViT's time: fit knows nothing of what is inside. `odd_batches` trains a ViT."""
    import keras

    import keras_vit

    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Flatten()(keras.layers.AveragePooling2D(8)(inputs))
    x = keras.layers.Dense(8, activation="tanh", name="hidden")(x)
    return keras_vit.Model(inputs, keras.layers.Dense(CLASSES, name="head")(x))


def tiny_vit(**changes):
    return small_vit(**{"hidden_dim": 8, "mlp_dim": 12, **changes})


def sgd(**arguments):
    import keras

    return keras.optimizers.SGD(0.5, momentum=0.9, **arguments)


def on(replicas, run):
    """Calls `run()` on one device or on two replicas."""
    import keras_vit

    name, options = ("one", {}) if replicas == 1 else ("mirrored", {"devices": ["CPU:0", "CPU:1"]})
    with keras_vit.distribution(name, **options):
        return run()


def both(run):
    """The largest difference between one device and two replicas of what `run()` gives."""
    return difference(on(1, run), on(2, run))


def train(data, *, optimizer=sgd, model=tiny, fit=None, **compile_arguments):
    """Trains a small model; returns all its numbers by name."""
    made = compiled(fill(model()), optimizer(), **{"steps_per_execution": 1, **compile_arguments})
    history = made.fit(data, verbose=0, **{"shuffle": False, **(fit or {})}).history
    return {**weights_of(made), **{f"history/{name}": value for name, value in history.items()}}


def difference(first, second, only=lambda name: True):
    """The largest difference between two dicts of numbers of the same names."""
    import numpy as np

    if sorted(first) != sorted(second):
        raise ValueError(f"names differ: {sorted(set(first) ^ set(second))}")
    names = [name for name in first if only(name)]
    return max(float(np.max(np.abs(np.asarray(first[name], "float64") - second[name]))) for name in names)


def is_weight(name):
    return not name.startswith(("history/", "optimizer/"))


def error_of(run):
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-2000:]}"
    return "no error"


def weighted(count, batch):
    import numpy as np
    import tensorflow as tf

    weights = np.linspace(0.1, 2.0, count).astype("float32")
    return tf.data.Dataset.from_tensor_slices((*make_images(count), weights)).batch(batch)


def odd_batches():
    """A ViT; last batches of 3 + 2 rows, and of 1 + 0 rows in the validation."""
    return both(lambda: train(dataset(21, 8), model=tiny_vit, fit={"epochs": 2, "validation_data": dataset(9, 8)}))


def empty_replica():
    """A last batch of 1 + 0 rows, clipped and accumulated, with float weights."""
    optimizer = lambda: sgd(clipnorm=0.1, gradient_accumulation_steps=2)  # noqa: E731
    return both(lambda: train(weighted(25, 8), optimizer=optimizer, weighted_metrics=["accuracy"]))


def weighted_mean_loss():
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")

    def run():
        model = fill(tiny())
        model.compile(sgd(), loss)
        history = model.fit(weighted(13, 8), verbose=0, shuffle=False).history
        return {**weights_of(model), "history/loss": history["loss"]}

    return both(run)


def mixed_reductions():
    import keras

    def run():
        inner = tiny()
        outputs = {name: keras.layers.Dense(CLASSES, name=name)(inner.output) for name in ("a", "b")}
        import keras_vit

        model = keras_vit.Model(inner.input, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy
        model.compile(sgd(), {"a": loss(from_logits=True), "b": loss(from_logits=True, reduction="sum")})
        x, y = make_images(8)
        model.fit(x, {"a": y, "b": y}, verbose=0)

    return on(2, lambda: error_of(run))


def class_weights_and_arrays():
    x, y = make_images(20)
    fit = {"y": y, "batch_size": 8, "class_weight": {0: 0.5, 1: 2.0, 2: 1.0}}
    return both(lambda: train(x, fit=fit))


def distilled():
    return both(lambda: train(dataset(13, 8), model=lambda: tiny_vit(distilled=True)))


def _taught_vit():
    """A teacher of larger images, and a student with two heads whose norms are regularised."""
    import keras

    import keras_vit

    student = tiny_vit(distilled=True)
    student.get_layer("encoder_norm").gamma.regularizer = keras.regularizers.L2(0.1)
    return keras_vit.Distiller(student, tiny_vit(name="teacher", image_size=32), "soft", alpha=0.7, temperature=2.0)


def taught():
    """By a teacher, with weights: last batches of 3 + 2 rows, and of 2 + 1 in the validation, which has no teacher."""
    fit = {"validation_data": dataset(11, 8)}
    return both(lambda: train(weighted(13, 8), model=_taught_vit, fit=fit, run_eagerly=True))


def taught_in_parts():
    """The same compiled, in executions of two steps and in microbatches."""
    run = lambda steps, parts: train(  # noqa: E731
        weighted(29, 8), model=_taught_vit, steps_per_execution=steps, microbatches=parts
    )
    return difference(on(1, lambda: run(1, 1)), on(2, lambda: run(2, 2)))


def sets_of_objects():
    """A loss whose means are over objects: batches of 4 + 4 and 3 + 2 images with 0 to 3 objects each."""
    import keras
    import numpy as np

    import keras_vit

    def run():
        inner = tiny()
        hidden = inner.get_layer("hidden").output
        logits, boxes = keras.layers.Dense(12, name="logits")(hidden), keras.layers.Dense(16, name="boxes")(hidden)
        boxes = keras.layers.Reshape((4, 4))(boxes)
        outputs = {"logits": keras.layers.Reshape((4, 3))(logits), "boxes": keras.layers.Activation("sigmoid")(boxes)}
        model = fill(keras_vit.Model(inner.input, outputs))
        model.compile(sgd(), keras_vit.tasks.DetectionLoss())
        rng = np.random.default_rng(0)
        labels = np.where(np.arange(3) < rng.integers(0, 4, (13, 1)), rng.integers(0, 2, (13, 3)), -1)
        targets = {"labels": labels, "boxes": rng.uniform(0.2, 0.5, (13, 3, 4)).astype("float32")}
        weights = np.linspace(0.5, 2, 13, dtype="float32")
        history = model.fit(make_images(13)[0], targets, 8, sample_weight=weights, verbose=0, shuffle=False).history
        return {**weights_of(model), "history/loss": history["loss"]}

    return both(run)


def several_steps():
    """5 batches in executions of 2: the same as one by one, on one device and on two replicas; 5 steps each."""
    one_by_one = on(1, lambda: train(dataset(37, 8), fit={"epochs": 2}))
    unknown = lambda: dataset(37, 8).filter(lambda *_: True)  # noqa: E731
    runs = {
        "one device": (1, dataset(37, 8)),
        "one device, unknown length": (1, unknown()),
        "two replicas": (2, dataset(37, 8)),
        "two replicas, unknown length": (2, unknown()),
    }
    found = {}
    for name, (replicas, data) in runs.items():
        there = on(replicas, lambda data=data: train(data, fit={"epochs": 2}, steps_per_execution=2))
        found[name] = difference(one_by_one, there)
    return found


def several_steps_of_endless_data():
    fit = {"epochs": 2, "steps_per_epoch": 4, "validation_data": dataset(24, 8), "validation_steps": 2}
    run = lambda steps: train(dataset(40, 8).repeat(), fit=fit, steps_per_execution=steps)  # noqa: E731
    return difference(on(1, lambda: run(1)), on(2, lambda: run(2)))


def indivisible_steps():
    fit = {"steps_per_epoch": 3}
    return error_of(lambda: train(dataset(40, 8).repeat(), fit=fit, steps_per_execution=2))


def outside_labels():
    """One in the last row of a batch, which the second replica gets; other runs of the process go on."""
    import tensorflow as tf

    wrong = tf.constant(2**32 + 1, "int64")
    data = dataset(16, 8).map(lambda x, y: (x, tf.concat([y[:7], [wrong]], 0)))
    return on(2, lambda: error_of(lambda: train(data)))


def microbatches():
    """Batches of 8, and an odd one of 5, in 3 parts: the whole batch's gradient."""
    whole = on(1, lambda: train(dataset(21, 8)))
    return {
        "one device": difference(whole, on(1, lambda: train(dataset(21, 8), microbatches=3))),
        "two replicas": difference(whole, on(2, lambda: train(dataset(21, 8), microbatches=2))),
    }


def microbatch_errors():
    import keras_vit

    class OwnStep(keras_vit.Model):
        def train_step(self, data):
            return super().train_step(data)

    def own_step():
        inner = tiny()
        compiled(OwnStep(inner.input, inner.output), sgd(), microbatches=2)

    return {
        "own train_step": error_of(own_step),
        "zero": error_of(lambda: compiled(tiny(), sgd(), microbatches=0)),
    }


def dense_cases():
    """Small models on two replicas: what is refused, and what is as on one device."""
    import keras
    import numpy as np

    import keras_vit

    class OwnLoss(keras_vit.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.square(y - y_pred))

    class OwnLogs(keras_vit.Model):
        def train_step(self, data):
            super().train_step(data)
            return {"mean": keras.ops.mean(data[0])}

    def run(model_class=keras_vit.Model, trainable=True, masked=False, loss="mse"):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((2, 3))
        tokens = keras.layers.Masking()(inputs) if masked else inputs
        model = model_class(inputs, keras.layers.Dense(1, kernel_regularizer="l2")(tokens))
        model.trainable = trainable
        model.compile(sgd(), loss, run_eagerly=True)
        x = np.random.default_rng(0).normal(size=(7, 2, 3)).astype("float32")
        history = model.fit(x, x[..., :1], batch_size=7, verbose=0, shuffle=False).history
        return {"kernel": keras.ops.convert_to_numpy(model.layers[-1].kernel), **history}

    summed = lambda: keras.losses.MeanSquaredError(reduction="sum")  # noqa: E731
    one, two = (on(count, lambda: run(OwnLogs)) for count in (1, 2))
    return {
        "own compute_loss": on(2, lambda: error_of(lambda: run(OwnLoss))),
        "masked": on(2, lambda: error_of(lambda: run(masked=True))),
        "frozen": on(2, lambda: error_of(lambda: run(trainable=False))),
        "own logs": difference(one, two, lambda name: name != "mean"),
        "own mean": two["mean"],
        "summed": both(lambda: run(loss=summed())),
    }


def jit_compile():
    return on(2, lambda: error_of(lambda: compiled(tiny(), sgd(), jit_compile=True)))


def evaluate_and_predict():
    import numpy as np

    def run(steps):
        model = compiled(fill(tiny()), sgd(), steps_per_execution=steps)
        found = model.evaluate(dataset(17, 8), verbose=0, return_dict=True)
        found["predict"] = model.predict(dataset(17, 8).map(lambda x, y: x), verbose=0)
        x, y = make_images(6)
        found |= {f"batch/{name}": value for name, value in model.test_on_batch(x, y, return_dict=True).items()}
        found["batch/predict"] = model.predict_on_batch(x)
        found["rows"] = np.float64(len(found["predict"]))
        return found

    one = on(1, lambda: run(1))
    return {"rows": one["rows"], "difference": max(difference(one, on(2, lambda n=n: run(n))) for n in (1, 2))}


def train_on_batch():
    def run():
        model = compiled(fill(tiny()), sgd(global_clipnorm=0.1), steps_per_execution=1)
        x, y = make_images(8)
        logs = [model.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(2)]
        return {**weights_of(model), "history/loss": logs}

    return both(run)


def swapped_averages():
    import keras

    optimizer = lambda: sgd(use_ema=True, ema_momentum=0.8)  # noqa: E731
    fit = lambda: {"callbacks": [keras.callbacks.SwapEMAWeights()], "validation_data": dataset(8, 8)}  # noqa: E731
    return both(lambda: train(dataset(16, 8), optimizer=optimizer, fit=fit()))


def eager():
    return both(lambda: train(dataset(13, 8), optimizer=lambda: sgd(global_clipnorm=0.1), run_eagerly=True))


def saved():
    """A model compiled under a strategy opens on one device and goes on, and the other way round."""
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "model.keras")

        def save(replicas):
            def run():
                model = compiled(fill(tiny()), sgd(global_clipnorm=0.1), microbatches=2, steps_per_execution=1)
                model.fit(dataset(16, 8), verbose=0, shuffle=False)
                model.save(path)

            on(replicas, run)

        def go_on():
            model = keras.models.load_model(path)
            model.fit(dataset(16, 8), verbose=0, shuffle=False)
            return {**weights_of(model), "microbatches": model._microbatches, "built": float(model.optimizer.built)}

        save(1)
        one = on(1, go_on)
        there = on(2, go_on)
        save(2)
        back = on(1, go_on)
    return {"microbatches": one["microbatches"], "there": difference(one, there), "back": difference(one, back)}


def given_weights():
    """A model that `create_model` fills from a file, on two replicas: the weights of the file on both of them."""
    import keras_vit

    size = {"classes": CLASSES, "image_size": 16}
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "model.keras")
        fill(keras_vit.create_model("ViT-Ti_16", **size)).save(path)

        def run():
            model = keras_vit.create_model("ViT-Ti_16", weights=path, **size)
            copies = {f"{x.path}/{number}": copy for x in model.weights for number, copy in enumerate(_copies(x))}
            return copies, {"logits": model.predict(make_images(5)[0], verbose=0)}

        (one, one_logits), (two, two_logits) = on(1, run), on(2, run)
    return {"weights": difference(one, two), "logits": difference(one_logits, two_logits)}


def _copies(weight):
    """The values of a variable on the devices, two of them also where there is one."""
    import tensorflow as tf

    values = tf.distribute.get_strategy().experimental_local_results(weight.value)
    return [value.numpy() for value in (values[0], values[-1])]
