"""Measure the accuracy of fine-tuning: `python -m benchmarks.finetune --weights ViT-Ti_16.npz --data cifar10.npz`.

The recipe is the paper's for CIFAR-10 (arXiv 2010.11929, Table 4: SGD with momentum 0.9, cosine decay, clipping at 1,
no weight decay) with changes for a small set of small images. These are CHANGES, and a random crop from 8/7 of the size
instead of the Inception crop, similar to BiT (arXiv 1912.11370, section 3.3). Options of `keras-vit train` that change
a recipe can be added, such as `--image-size 96` or `--set dtype=float32`. The data are one `.npz` file with `x_train`
and `x_test`, uint8 (images, height, width, 3), and `y_train` and `y_test`, integers. One row is printed per seed, then
the mean.

`--compare` trains with each of METHODS instead, for the same number of steps, with seed 0. A fifth of the training
images is held out: it chooses the learning rate of a method from its own grid, and the run with this rate is measured
on the test images. `python -m benchmarks.finetune --compare --image-size 96 --steps 150 ...` takes ten minutes on two
cores.
"""

import argparse
import pathlib
import statistics
import tempfile
import time
import typing

import keras
import numpy as np

import keras_vit
from benchmarks.report import Table
from keras_vit.cli import parser
from keras_vit.cli.training import read_changes as changes_of

RECIPE = "vit/finetune/cifar10"
CHANGES = {
    "steps": 400,
    "warmup_steps": 15,
    "batch_size": 64,
    "learning_rate": 0.01,
    "image_size": 224,
    "dtype": "mixed_bfloat16",
}
_ADAMW = {"optimizer": "adamw", "momentum": None}
# name -> function that chooses the weights to train, changes of the recipe, learning rates
METHODS = {
    "all": (lambda model: None, {}, (0.01, 0.03, 0.1)),
    "LoRA and head": (keras_vit.add_lora, _ADAMW, (0.001, 0.003, 0.01)),
    "head": (keras_vit.freeze, _ADAMW, (0.001, 0.003, 0.01)),
}


def main():
    own = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    own.add_argument("--weights", required=True, help="weights of a ViT-Ti/16")
    own.add_argument("--data", required=True, help=".npz file of the images")
    own.add_argument("--compare", action="store_true", help="compare full fine-tuning, LoRA and training of the head")
    own.add_argument("--seeds", type=int, default=3, help="number of runs")
    arguments, words = own.parse_known_args()
    changes = read_changes(own, words)
    recipe = keras_vit.training.RECIPES[RECIPE].replace(**{**CHANGES, **changes})
    if "augment" not in changes:
        recipe = recipe.replace(augment=(f"random_crop({max(recipe.image_size) * 8 // 7})", "flip"))
    train, test = read(arguments.data)
    if arguments.compare:
        print(compare(recipe.replace(seed=0), train, test, arguments.weights))
        return
    shares = [fine_tune(recipe.replace(seed=seed), train, test, arguments.weights) for seed in range(arguments.seeds)]
    print(f"mean of {len(shares)} seeds: {100 * statistics.mean(shares):.2f} %")


def read_changes(own, words):
    """Return the fields of the recipe that options of `keras-vit train` change; exit on other options."""
    plain, given = (vars(parser.parse(["train", "--recipe", RECIPE, *more])) for more in ([], words))
    changes = changes_of(argparse.Namespace(**given))
    without_effect = [name for name in given if given[name] != plain[name] and name not in (*changes, "set")]
    if without_effect or "seed" in changes:
        own.error(f"only changes of the recipe other than its seed may be added; got {' '.join(words)}")
    return changes


def read(path):
    """Return the sources of the training and the test images in an `.npz` file."""
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(keras_vit.data.from_arrays(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))


def fine_tune(recipe, train, test, weights):
    """Train a model with `recipe` and return its accuracy on the test images, in [0, 1]."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = keras_vit.train(recipe, train, pathlib.Path(folder), model="ViT-Ti_16", weights=weights, verbose=2)
    accuracy = keras_vit.evaluate(result.model, test, batch_size=recipe.batch_size)
    minutes = (time.perf_counter() - start) / 60
    print(f"seed {recipe.seed}: {accuracy} in {minutes:.1f} minutes", flush=True)
    return accuracy.top[1]


def compare(recipe, train, test, weights):
    """Return a `Table` of the accuracies of `METHODS`, each with the best rate of its grid; see `--compare`."""
    learned, held_out = train.split(0.2)
    rows = []
    for name, (choose, changes, rates) in METHODS.items():
        found = {}
        for rate in rates:
            changed = recipe.replace(learning_rate=rate, **changes)
            found[rate] = adapt(choose, changed, (learned, held_out, test), weights)
            print(f"{name}, learning rate {rate:g}: {found[rate]}", flush=True)
        best = max(rates, key=lambda rate: found[rate].held_out)
        by_rate = ", ".join(f"{rate:g}: {100 * found[rate].held_out:.1f}" for rate in rates)
        rows.append((name, f"{found[best].trained:.2%}", by_rate, f"{best:g}", f"{100 * found[best].test:.1f}"))
    columns = ("trained", "share of the weights", "held out, by learning rate", "chosen rate", "test")
    note = f"{recipe.steps} steps of {recipe.batch_size} images at {recipe.image_size[0]} px, accuracies in percent."
    return Table("Full fine-tuning, LoRA and the head alone", note, columns, rows)


class Adapted(typing.NamedTuple):
    """Accuracies on the images held out and on the test images, and the share of the weights that were trained."""

    held_out: float
    test: float
    trained: float


def adapt(choose, recipe, sources, weights):
    """Train the weights that `choose` leaves trainable with `recipe`; return what was `Adapted`."""
    learned, *measured = sources
    classes = len(learned.class_names)
    keras.utils.set_random_seed(recipe.seed)  # of the matrices of LoRA
    model = keras_vit.ViT_Ti16(weights=weights, classes=classes, image_size=recipe.image_size, dtype=recipe.dtype)
    choose(model)
    trained = sum(np.prod(weight.shape) for weight in model.trainable_weights) / model.count_params()
    with tempfile.TemporaryDirectory() as folder:
        keras_vit.train(recipe, learned, pathlib.Path(folder), model=model, verbose=0)
    return Adapted(*(keras_vit.evaluate(model, images, batch_size=100).top[1] for images in measured), trained)


if __name__ == "__main__":
    main()
