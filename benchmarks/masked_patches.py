"""Measure the gain from masked patch prediction: `python -m benchmarks.masked_patches --data cifar10.npz`.

A small ViT is pre-trained to predict masked patches of all training images, without their labels, and then fine-tuned
on a few labelled ones. The same ViT with random weights is fine-tuned for comparison: with the same recipe, on the same
images in the same order, for the same number of steps.

For each target, one row has the loss of the pre-training on the test images, next to the losses of two constant
predictions. `chance` predicts all classes with equal probability (for pixels: grey). `marginal` predicts the frequency
of each class (for pixels: the mean of each pixel) in the training images. The next row has the accuracy on the test
images after fine-tuning, for each seed. The seed determines the random weights, the labelled images and their order.

The data are one `.npz` file with `x_train` and `x_test`, uint8 (images, height, width, channels), and `y_train` and
`y_test`, integers. Without it, the data are scikit-learn's digits.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import keras
import numpy as np

import keras_vit
from keras_vit.models.masked_images import cut_patches
from keras_vit.models.masked_patches import BINS, TARGETS

PRETRAINING = "vit/masked-patches/digits"
FINE_TUNING = {"warmup_fraction": 0.1, "weight_decay": 0.05, "clip_norm": 1.0}
SIZES = {"hidden_dim": 96, "num_layers": 4, "num_heads": 4, "mlp_dim": 192}
# number of channels -> value for the digits (1) and for colour images (3)
PATCHES, AUGMENT = {1: 2, 3: 4}, {1: ("shift",), 3: ("random_crop({})", "flip")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data", help=".npz file of the images; without it, scikit-learn's digits")
    parser.add_argument("--targets", nargs="*", default=["mean_color"], help=f"targets, out of {', '.join(TARGETS)}")
    parser.add_argument("--pretraining-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=250, help="steps of the fine-tuning")
    parser.add_argument("--labels", type=int, default=1000, help="labelled images to fine-tune on")
    parser.add_argument("--seeds", type=int, default=3, help="number of fine-tunings")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak of the fine-tuning")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    arguments = parser.parse_args()
    data = read(arguments.data)
    config = make_config(arguments, data)
    scratch = [fine_tune(arguments, data, build(config, seed), seed) for seed in range(arguments.seeds)]
    print_row("from scratch", scratch)
    for target in arguments.targets:
        encoder, loss = pretrain(arguments, data, config, target)
        chance, marginal = guesses(data, config, target)
        print(f"{target}: loss {loss:.4f}, marginal {marginal:.4f}, chance {chance:.4f}", flush=True)
        tuned = [fine_tune(arguments, data, keras_vit.clone(encoder), seed) for seed in range(arguments.seeds)]
        print_row(f"pre-trained on {target}", tuned)
        gains = [after - before for before, after in zip(scratch, tuned, strict=True)]
        print(f"gains of {target}: {' '.join(f'{100 * gain:+.2f}' for gain in gains)}", flush=True)


def read(path):
    """Return a dict of the arrays in an `.npz` file, or of the digits."""
    names = [f"{array}_{part}" for part in ("train", "test") for array in "xy"]
    if path is not None:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    arrays = []
    for source in keras_vit.data.from_digits():
        batches = keras_vit.data.eval_pipeline(source, keras_vit.Preprocessing(size=8, mean=0.0, std=1.0), source.size)
        images, labels = next(batches.as_numpy_iterator())
        arrays += [np.rint(255 * images).astype("uint8"), labels]
    return dict(zip(names, arrays, strict=True))


def make_config(arguments, data):
    height, width, channels = data["x_train"].shape[1:]
    return keras_vit.ViTConfig(
        name="small",
        image_size=(height, width),
        patch_size=PATCHES[channels],
        channels=channels,
        classes=int(data["y_train"].max()) + 1,
        **{name: getattr(arguments, name) for name in SIZES},
    )


def build(config, seed):
    keras.utils.set_random_seed(seed)
    return keras_vit.VisionTransformer(config)


def pretrain(arguments, data, config, target):
    """Pre-train; return the encoder and its loss on the test images."""
    recipe = keras_vit.training.RECIPES[PRETRAINING].replace(
        steps=arguments.pretraining_steps,
        batch_size=arguments.batch_size,
        augment=augment(config),
        dataset=None,
        model=None,
    )
    model = keras_vit.MaskedPatchPrediction(build(config, seed=100), target)
    with timed(f"pre-training on {target}"):
        train(recipe, source(data, "train"), model)
    test = keras_vit.data.eval_pipeline(source(data, "test"), model.encoder.preprocessing, arguments.batch_size)
    return model.encoder, model.evaluate(test, verbose=0, return_dict=True)["loss"]


def guesses(data, config, target):
    """Return the losses of `chance` and `marginal` on the test images, see the top of this file."""
    train, test = (
        np.asarray(TARGETS[target].of(cut_patches(data[f"x_{part}"].astype("float32") / 255, config.grid_size)))
        for part in ("train", "test")
    )
    if target == "pixels":
        return np.mean((test - 0.5) ** 2), np.mean((test - train.mean((0, 1))) ** 2)
    classes = BINS**config.channels
    losses = []
    for known, asked in zip(_by_cell(train), _by_cell(test), strict=True):
        counts = np.bincount(known, minlength=classes) + 1.0  # + 1, because a class may occur only in the test images
        losses.append(-np.log(counts / counts.sum())[asked].mean())
    return np.log(classes), np.mean(losses)


def _by_cell(classes):
    """Reshape classes (images, patches) or (images, patches, cells) to (cells, images * patches)."""
    return classes.reshape(classes.shape[0] * classes.shape[1], -1).T


def fine_tune(arguments, data, encoder, seed):
    """Fine-tune on a few labelled images and return the accuracy on the test images, in [0, 1]."""
    recipe = keras_vit.training.RECIPES["quickstart"].replace(
        **FINE_TUNING,
        learning_rate=arguments.learning_rate,
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        augment=augment(encoder.config),
        seed=seed,
        dataset=None,
        model=None,
    )
    train(recipe, source(data, "train", arguments.labels, seed), encoder)
    return keras_vit.evaluate(encoder, source(data, "test"), batch_size=arguments.batch_size).top[1]


def train(recipe, images, model):
    with tempfile.TemporaryDirectory() as folder:
        return keras_vit.train(recipe, images, pathlib.Path(folder), model=model, verbose=0)


def source(data, part, count=None, seed=0):
    """Return a source of a part of the data; with `count`, of that many random images, the same number per class."""
    images, labels = data[f"x_{part}"], data[f"y_{part}"]
    if count is not None:
        order = np.random.default_rng(seed).permutation(len(labels))
        ranks = {label: [place for place in order if labels[place] == label] for label in np.unique(labels)}
        chosen = [place for places in ranks.values() for place in places[: count // len(ranks)]]
        images, labels = images[chosen], labels[chosen]
    return keras_vit.data.from_arrays(images, labels.astype("int32"))


def augment(config):
    return tuple(text.format(max(config.image_size) * 9 // 8) for text in AUGMENT[config.channels])


def print_row(name, shares):
    figures = " ".join(f"{100 * share:.2f}" for share in shares)
    print(f"{name}: accuracy {figures}, mean {100 * statistics.mean(shares):.2f} %", flush=True)


class timed:
    """Context manager that prints its duration."""

    def __init__(self, name):
        self._name = name

    def __enter__(self):
        self._start = time.perf_counter()

    def __exit__(self, *error):
        print(f"{self._name}: {(time.perf_counter() - self._start) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
