"""What fine-tuning reaches: `python -m benchmarks.finetune --weights ViT-Ti_16.npz --data cifar10.npz`.

The recipe is the paper's for CIFAR-10 (arXiv 2010.11929, Table 4: SGD with momentum 0.9, cosine, clipping at 1, no
weight decay) with a batch and a number of steps for a small set of pictures. The data are one `.npz` file: `x_train`
and `x_test`, uint8 (pictures, height, width, 3), `y_train` and `y_test`, integers. A row is printed per seed, then
the mean.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import numpy as np

import keras_vit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", required=True, help="file of a ViT-Ti/16")
    parser.add_argument("--data", required=True, help=".npz file of the pictures")
    parser.add_argument("--recipe", default="vit/finetune/cifar10")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--augment", nargs="*", default=["flip"])
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    train, test = read(arguments.data)
    recipe = keras_vit.training.RECIPES[arguments.recipe].replace(
        epochs=None,
        steps=arguments.steps,
        warmup_steps=arguments.warmup_steps,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
        image_size=arguments.image_size,
        augment=arguments.augment,
        dtype=arguments.dtype,
    )
    shares = [fine_tune(recipe.replace(seed=seed), train, test, arguments.weights) for seed in range(arguments.seeds)]
    print(f"mean of {len(shares)} seeds: {100 * statistics.mean(shares):.2f} %")


def read(path):
    """Sources of the training and the test pictures of a `.npz` file."""
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(
            keras_vit.data.from_arrays(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")
        )


def fine_tune(recipe, train, test, weights):
    """Share of the test pictures that a model trained by `recipe` names rightly."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = keras_vit.train(recipe, train, pathlib.Path(folder), model="ViT-Ti_16", weights=weights, verbose=2)
    accuracy = keras_vit.evaluate(result.model, test, batch_size=recipe.batch_size)
    minutes = (time.perf_counter() - start) / 60
    print(f"seed {recipe.seed}: {accuracy} in {minutes:.1f} minutes", flush=True)
    return accuracy.top[1]


if __name__ == "__main__":
    main()
