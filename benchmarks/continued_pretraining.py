"""Measure continued pre-training: `python -m benchmarks.continued_pretraining --model DIR --data cifar10_small.npz`.

A published encoder goes on training on images without their labels. Before and after, the training images vote on the
classes of the test images (`keras_vit.evaluation.knn`, 20 neighbours, T = 0.07). The images are given as they are
(`plain`), and with permuted and inverted colour channels (`changed`): a field that the encoder never saw.

Each row is a method and a seed, which determines the heads, the order of the images, their crops and the masks. All
methods see crops of one size, at which the accuracies are measured too. `--figure` draws the classes of the nearest
neighbours before and after the first run.

`--speed` times a step instead, in turn with its parts: student forward and backward, and teacher forward, on the same
crops without heads, losses and update; for DINOv3 also with the forward of the Gram teacher. It prints the ratios of
the medians and the peak memory of the process.
"""

import argparse
import functools
import resource
import statistics
import time

import keras
import numpy as np

import keras_vit
from benchmarks import masked_patches
from keras_vit.training import RECIPES

COLOURS = [2, 0, 1]  # the channel that takes the place of red, green and blue
# method -> what is trained, changes to the recipe of `continued_pretraining`, and to its `pretraining`
METHODS = {
    "LoRA": ("lora", {}, {}),
    "whole": ("all", {"encoder_rate": 0.15, "layer_decay": 0.8}, {}),
    "last 4 blocks": (4, {"encoder_rate": 0.3}, {}),
    "DINO": ("all", {"encoder_rate": 0.15, "layer_decay": 0.8}, {"method": "dino", "centering": "softmax"}),
}
MAE = {"learning_rate": 1e-3, "weight_decay": 0.05, "beta_2": 0.95, "warmup_fraction": 0.1, "image_size": None}
DECODER = {"hidden_dim": 128, "num_layers": 2, "num_heads": 4}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", required=True, help="file or folder of the encoder")
    parser.add_argument("--data", help=".npz file of the images, as in benchmarks.masked_patches")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, "MAE"], default=[*METHODS, "MAE"], metavar="NAME")
    parser.add_argument("--fields", nargs="+", choices=["changed", "plain"], default=["changed"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size", type=int, default=64, help="side of the crops in pixels")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--masked-steps", type=int, default=900, help="steps of the masked autoencoder")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--figure", metavar="FILE", help=".png file")
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        return time_steps(arguments)
    given = masked_patches.read(arguments.data)
    fields = {name: sources(given, name) for name in ("changed", "plain")}
    before = {name: accuracy(encoder(arguments), *parts) for name, parts in fields.items()}
    print(f"before: changed {100 * before['changed']:.1f} %, plain {100 * before['plain']:.1f} %", flush=True)
    print("method         trained on  seed  changed %   gain  plain %   gain  minutes", flush=True)
    for trained_on in arguments.fields:
        for seed in arguments.seeds:
            for method in arguments.methods:
                start = time.perf_counter()
                trained = run(arguments, method, fields[trained_on][0], seed)
                minutes = (time.perf_counter() - start) / 60
                after = {name: accuracy(trained, *parts) for name, parts in fields.items()}
                if arguments.figure is not None:
                    draw([encoder(arguments), trained], *fields[trained_on], given["y_test"], arguments.figure)
                    arguments.figure = None
                gains = [
                    f"{100 * after[name]:{width}.1f}  {100 * (after[name] - before[name]):+5.1f}"
                    for name, width in (("changed", 9), ("plain", 7))
                ]
                print(f"{method:13}  {trained_on:10}  {seed:4}  {'  '.join(gains)}  {minutes:7.1f}", flush=True)


def sources(data, field):
    """Return the training and the test images of a field."""
    if field == "changed":
        data = data | {name: 255 - data[name][..., COLOURS] for name in ("x_train", "x_test")}
    return [masked_patches.source(data, part) for part in ("train", "test")]


def encoder(arguments):
    """Return the published encoder for images of any size, which are prepared at the size of the crops."""
    model = keras_vit.resize(keras_vit.load(arguments.model, include_top=False), "any")
    model.preprocessing = model.preprocessing.replace(size=arguments.size, crop=None)
    return model


def accuracy(model, train, test):
    return keras_vit.evaluation.knn(model, train, test, batch_size=100).top1[20]


def run(arguments, method, images, seed):
    """Go on training; return the encoder: of self-distillation the teacher."""
    keras.utils.set_random_seed(seed)
    model = encoder(arguments)
    if method == "MAE":
        model = keras_vit.resize(model, arguments.size)
        recipe = RECIPES["mae/imagenet"].replace(
            **MAE, batch_size=arguments.batch_size, steps=arguments.masked_steps, seed=seed
        )
        masked = keras_vit.MaskedAutoencoder(model, DECODER, seed=seed)
        masked_patches.train(recipe, images, masked)
        return masked.encoder
    trained, changes, settings = METHODS[method]
    recipe = keras_vit.training.continued_pretraining(model, images.size, arguments.batch_size, epochs=2)
    if trained == "lora":
        keras_vit.add_lora(model)
    elif trained != "all":
        keras_vit.freeze(model, f"block_{model.config.num_layers - 1 - trained:02d}")
    settings = {**recipe.pretraining, "seed": seed, **settings}
    recipe = recipe.replace(steps=arguments.steps, seed=seed, pretraining=settings, **changes)
    return masked_patches.train(recipe, images, model).model.teacher


def draw(models, train, test, labels, path):
    """Draw the classes of the 20 nearest training images for the first test image of each class, before and after."""
    from matplotlib.figure import Figure

    queries = [int(np.flatnonzero(labels.reshape(-1) == label)[0]) for label in range(int(labels.max()) + 1)]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, title, model in zip(figure.subplots(1, 2, sharey=True), ("before", "after"), models, strict=True):
        stored, asked = (keras_vit.evaluation.embed(model, part, batch_size=100).features for part in (train, test))
        found = train.labels[keras_vit.evaluation.nearest(stored, asked[queries], 20).indices]
        right = int((found == np.arange(len(queries))[:, None]).sum())
        axes.imshow(found, cmap="tab10", vmin=-0.5, vmax=9.5, aspect="auto")
        axes.set(title=f"{title}: {right} of {found.size} neighbours have the right class", xlabel="neighbour")
        axes.set_yticks(range(len(queries)), [f"class {label}" for label in range(len(queries))])
    figure.savefig(path, dpi=100)


def time_steps(arguments):
    import tensorflow as tf

    model = encoder(arguments)
    recipe = keras_vit.training.continued_pretraining(model, 5000, arguments.batch_size)
    rng, local = np.random.default_rng(0), recipe.crops["local_size"]
    views = {"global": (2, arguments.size, arguments.size, 3), "local": (recipe.crops["local_crops"], *local, 3)}
    crops = {name: rng.normal(size=(arguments.batch_size, *shape)).astype("float32") for name, shape in views.items()}
    for method in ("dino", "dinov2", "dinov3"):
        settings = {**recipe.pretraining, "method": method}
        distilled = recipe.compile(keras_vit.SelfDistillation(keras_vit.clone(model), **settings), steps_per_epoch=100)
        models = [one for one in (distilled.student, distilled.teacher, distilled.gram_teacher) if one is not None]
        bodies = [keras.Model(one.input, one.output) for one in models]
        images = [tf.reshape(crop, (-1, *crop.shape[2:])) for crop in crops.values()]

        @tf.function(jit_compile=distilled.jit_compile, autograph=False)
        def parts(count, bodies=bodies, images=images):
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_mean(tf.square(bodies[0](one, training=True))) for one in images)
            taught = [body(images[0], training=False) for body in bodies[1:count]]
            return tape.gradient(loss, bodies[0].trainable_variables), taught

        dataset = tf.data.Dataset.from_tensors((crops, np.zeros(arguments.batch_size, "int32"))).repeat()
        options = tf.data.Options()
        options.autotune.enabled = False  # as in the pipelines of keras_vit: its thread may delay the end of `fit`
        dataset = dataset.with_options(options)
        fit = functools.partial(distilled.fit, dataset, epochs=1, steps_per_epoch=10, verbose=0)
        steps = {"step": fit}
        for count in range(2, 1 + len(bodies)):
            steps[count] = lambda n=count, parts=parts: [parts(n) for _ in range(10)][-1][1][-1].numpy()
        times = {name: [] for name in steps}
        for round_ in range(6):
            for name, function in steps.items():
                start = time.perf_counter()
                function()
                times[name] += [(time.perf_counter() - start) / 10] * (round_ > 0)  # the first one compiles
        step, *rest = (statistics.median(values) for values in times.values())
        ratios = ", ".join(f"parts {1000 * part:.0f} ms, ratio {step / part:.2f}" for part in rest)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{method}: {1000 * step:.0f} ms; {ratios}; {memory:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
