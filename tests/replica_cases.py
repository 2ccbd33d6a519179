"""What tests/compat/test_optimizers.py and test_replica_seeds.py compare, as fit_cases.py does for fit itself.

Run as a script in a process of its own: `python replica_cases.py FILE CASE...` writes a dict, case -> what its function
returns (or the error it raised), as JSON. A case is a function of this file or of fit_cases.py.
"""

import json
import pathlib
import sys

import fit_cases
from device_runs import CLASSES, compiled, dataset, fill, make_images, split_cpu, weights_of
from fit_cases import both, difference, error_of, is_weight, on, sgd, tiny, tiny_vit, train


def overwritten_averages():
    arguments = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    return both(lambda: train(dataset(40, 8), optimizer=lambda: sgd(**arguments)))


def clipped_values():
    arguments = {"clipvalue": 0.01, "gradient_accumulation_steps": 3}
    return both(lambda: train(dataset(56, 8), optimizer=lambda: sgd(**arguments)))


def fused_adamw():
    """Schedule, decay, clipping and accumulation; a steps' loop in which the weights are updated."""
    import keras

    rate = keras.optimizers.schedules.CosineDecay(0.0, 8, warmup_target=0.1, warmup_steps=2)
    arguments = {"epsilon": 1e-3, "weight_decay": 0.1, "global_clipnorm": 0.1, "gradient_accumulation_steps": 2}
    optimizer = lambda: keras.optimizers.AdamW(rate, **arguments)  # noqa: E731
    return both(lambda: train(dataset(32, 8), optimizer=optimizer, steps_per_execution=2))


def nadam():
    import keras

    optimizer = lambda: keras.optimizers.Nadam(0.01, epsilon=1e-3, clipnorm=0.05)  # noqa: E731
    only = lambda name: is_weight(name)  # noqa: E731
    run = lambda: train(dataset(24, 8), optimizer=optimizer)  # noqa: E731
    return difference(on(1, run), on(2, run), only)


def loss_scale():
    """float16, where the second replica alone meets infinity: the step is left out and the scale is halved."""
    import keras
    import numpy as np

    def run():
        optimizer = keras.optimizers.LossScaleOptimizer(sgd(global_clipnorm=0.1), initial_scale=2.0**4)
        model = compiled(fill(tiny()), optimizer, steps_per_execution=1)
        x, y = make_images(16)
        x[12] = np.inf
        model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
        scale = float(optimizer.dynamic_scale.numpy())
        return {**weights_of(model), "history/scale": scale, "optimizer/steps": optimizer.step_counter.numpy()}

    one, two = on(1, run), on(2, run)
    return {"difference": difference(one, two), "scale": one["history/scale"]}


def one_device_is_stock():
    """The names that are replaced on an optimizer under one device, and under two replicas."""
    replaced = lambda: sorted(set(vars(compiled(tiny(), sgd()).optimizer)) & _REPLACED)  # noqa: E731
    return {"one": on(1, replaced), "two": on(2, replaced)}


_REPLACED = {"_backend_apply_gradients", "_all_reduce_sum_gradients"}


def stock(optimizer=sgd, **compile_arguments):
    """A stock model under two replicas against one device."""
    import keras

    def model():
        inputs = keras.Input((16, 16, 3))
        return keras.Model(inputs, keras.layers.Dense(CLASSES, name="dense")(keras.layers.Flatten()(inputs)))

    run = lambda: train(dataset(32, 8), model=model, optimizer=optimizer, **compile_arguments)  # noqa: E731
    return error_of(lambda: difference(on(1, run), on(2, run)) < 1e-4 or 1 / 0)


def stock_faults():
    return {
        "global_clipnorm": stock(lambda: sgd(global_clipnorm=0.1)),
        "gradient_accumulation_steps": stock(lambda: sgd(gradient_accumulation_steps=2)),
        "ema_overwrite_frequency": stock(lambda: sgd(use_ema=True, ema_overwrite_frequency=2)),
        "steps_per_execution": stock(steps_per_execution=2),
        "nothing": stock(),
    }


def masks(model_class_name="keras_vit"):
    """What a Dropout of a user gives on each of two replicas, twice, and the seeds it takes."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    def run():
        keras.utils.set_random_seed(7)
        inputs = keras.Input((64,))
        dropout = keras.layers.Dropout(0.5)
        model_class = keras_vit.Model if model_class_name == "keras_vit" else keras.Model
        model = model_class(inputs, dropout(inputs))
        model.compile("sgd", "mse")
        model.make_train_function()
        strategy = tf.distribute.get_strategy()

        @tf.function
        def draw():
            outputs = strategy.run(lambda: model(tf.ones((1, 64)), training=True))
            seeds = strategy.run(lambda: dropout.seed_generator.next())
            return strategy.experimental_local_results(outputs), strategy.experimental_local_results(seeds)

        drawn = [draw() for _ in range(2)]
        return [np.asarray(x).tolist() for step in drawn for kind in step for x in kind]

    return {"once": on(2, run), "again": on(2, run), "one": on(1, run)}


def stock_masks():
    return masks("keras")


def corrupted_places():
    """The patches that each of two replicas corrupts, twice."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    def run():
        keras.utils.set_random_seed(7)
        model = keras_vit.MaskedPatchPrediction(tiny_vit(patch_size=2))
        model.compile("sgd")
        model.make_train_function()
        strategy = tf.distribute.get_strategy()

        @tf.function
        def draw():
            outputs = strategy.run(lambda: model(tf.zeros((1, 16, 16, 3)), training=True)["places"])
            return strategy.experimental_local_results(outputs)

        return [np.asarray(places).tolist() for _ in range(2) for places in draw()]

    return on(2, run)


def masked_patches():
    """Where nothing is changed there is no chance: 9 images in batches of 8, on replicas and in microbatches."""
    import keras_vit

    def run(target, **arguments):
        encoder = tiny_vit(patch_size=4)
        model = fill(keras_vit.MaskedPatchPrediction(encoder, target, corruption_rate=1.0, shares=(0, 0, 1)))
        model.compile(sgd(global_clipnorm=0.1), **arguments)
        fit = {"epochs": 2, "validation_data": dataset(9, 8)}
        history = model.fit(dataset(9, 8), verbose=0, shuffle=False, **fit).history
        return {**weights_of(model), **{f"history/{name}": value for name, value in history.items()}}

    found = {}
    for target in ("mean_color", "pixels"):
        one = on(1, lambda target=target: run(target))
        found[target] = difference(one, on(2, lambda target=target: run(target)))
        found[f"{target}, microbatches"] = difference(one, on(1, lambda target=target: run(target, microbatches=3)))
    return found


def masked_autoencoder():
    """With the same noise for the same image: 9 images in batches of 8, on replicas and in microbatches."""
    import keras_vit
    from keras_vit.layers import patch_dropout

    patch_dropout.draw_noise = lambda tokens, prefix, seed: tokens[:, prefix:, 0]  # another order for each image

    def run(**arguments):
        model = fill(keras_vit.MaskedAutoencoder(tiny_vit(patch_size=4), {"hidden_dim": 8, "num_heads": 2}))
        model.compile(sgd(global_clipnorm=0.1), **arguments)
        fit = {"epochs": 2, "validation_data": dataset(9, 8)}
        history = model.fit(dataset(9, 8), verbose=0, shuffle=False, **fit).history
        return {**weights_of(model), **{f"history/{name}": value for name, value in history.items()}}

    one = on(1, run)
    others = {"replicas": on(2, run), "microbatches": on(1, lambda: run(microbatches=3))}
    return {name: difference(one, other) for name, other in others.items()}


def self_distillation_dinov3():
    """The same with Sinkhorn-Knopp, KoLeo and Gram anchoring; masks are drawn by each replica."""
    return self_distillation(method="dinov3", patch_weight=0.0)


def self_distillation(**settings):
    """Five batches of crops, the last one smaller, with the teacher, the centre and both entropies."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_vit

    rng = np.random.default_rng(0)
    shapes = {"global": (27, 2, 16, 16, 3), "local": (27, 3, 8, 8, 3)}
    crops = {key: rng.normal(size=shape).astype("float32") for key, shape in shapes.items()}

    def run():
        keras.utils.set_random_seed(3)
        student, sizes = keras_vit.resize(tiny_vit(), "any"), {"hidden_dim": 8, "bottleneck_dim": 8}
        model = keras_vit.SelfDistillation(student, 16, **sizes, **settings)
        model.compile(sgd(clipnorm=0.1), epochs=2, steps_per_epoch=5)
        history = model.fit(
            tf.data.Dataset.from_tensor_slices((crops, np.zeros(27))).batch(6), epochs=2, verbose=0
        ).history
        return {**weights_of(model), **{f"history/{name}": value for name, value in history.items()}}

    return both(run)


def self_distillation_without_rows():
    """A last batch of one image, of which the second replica has none: the error, and with that batch left out."""
    import numpy as np
    import tensorflow as tf

    import keras_vit

    crops = {"global": np.random.default_rng(0).normal(size=(5, 2, 16, 16, 3)).astype("float32")}

    def run(count):
        student = keras_vit.resize(tiny_vit(), "any")
        model = keras_vit.SelfDistillation(student, 16, hidden_dim=8, bottleneck_dim=8, method="dinov2", seed=1)
        model.compile(sgd(), epochs=1, steps_per_epoch=2)
        model.fit(tf.data.Dataset.from_tensor_slices((crops, np.zeros(5))).batch(4).take(count), verbose=0)

    return {str(count): error_of(lambda count=count: on(2, lambda: run(count))) for count in (1, 2)}


def dropout_runs():
    """Two runs of a ViT with dropout on two replicas, and one with other seeds."""
    import keras

    def run(seed):
        keras.utils.set_random_seed(seed)
        return train(dataset(16, 8), model=lambda: tiny_vit(dropout_rate=0.1, drop_path_rate=0.1, remat="block"))

    first, again, other = (on(2, lambda seed=seed: run(seed)) for seed in (3, 3, 4))
    return {"same seed": difference(first, again), "another seed": difference(first, other, is_weight)}


def main(file, names):
    split_cpu(2)
    found = {}
    for name in names:
        try:
            found[name] = {**vars(fit_cases), **globals()}[name]()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[-2000:]}"
    pathlib.Path(file).write_text(json.dumps(found, default=float), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
