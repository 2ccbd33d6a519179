"""Measure the accuracy of fine-tuning: `python -m benchmarks.finetune --weights ViT-Ti_16.npz --data cifar10.npz`.

The recipe is the paper's for CIFAR-10 (arXiv 2010.11929, Table 4: SGD with momentum 0.9, cosine decay, clipping at 1,
no weight decay) with changes for a small set of small images. These are CHANGES, and a random crop from 8/7 of the size
instead of the Inception crop, similar to BiT (arXiv 1912.11370, section 3.3). Options of `keras-vit train` that change
a recipe can be added, such as `--image-size 96` or `--set dtype=float32`. The data are one `.npz` file with `x_train`
and `x_test`, uint8 (images, height, width, 3), and `y_train` and `y_test`, integers. One row is printed per seed, then
the mean.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import numpy as np

import keras_vit
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


def main():
    own = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    own.add_argument("--weights", required=True, help="weights of a ViT-Ti/16")
    own.add_argument("--data", required=True, help=".npz file of the images")
    own.add_argument("--seeds", type=int, default=3, help="number of runs")
    arguments, words = own.parse_known_args()
    changes = read_changes(own, words)
    recipe = keras_vit.training.RECIPES[RECIPE].replace(**{**CHANGES, **changes})
    if "augment" not in changes:
        recipe = recipe.replace(augment=(f"random_crop({max(recipe.image_size) * 8 // 7})", "flip"))
    train, test = read(arguments.data)
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


if __name__ == "__main__":
    main()
