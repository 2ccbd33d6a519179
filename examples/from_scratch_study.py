"""Compare recipes for training a small Vision Transformer from scratch on few images.

    python examples/from_scratch_study.py [--output DIR] [--steps N] [--seeds N] [--tiny]
    python examples/from_scratch_study.py --data cifar10.npz --output from_scratch

Every run has the same steps, batches and weight decay, those of the recipe cifar10/scratch, the learning rate 1e-3 and
the same model: 4 blocks of width 128, 64 tokens of 4 x 4 pixels. The runs differ in the regularisation: none; random
crops and flips; RandAugment in addition; and the whole recipe, with MixUp, CutMix, label smoothing, stochastic depth
and dropout of the attention weights. In the last run, a convolutional stem replaces one of the blocks, at equal cost. A
table, from_scratch.csv and from_scratch.png show the accuracy on the test images against the steps. Nothing is selected
on these images: the last accuracy counts, not the best. The same command resumes an interrupted study, also within a
run; --output has one folder per run. Requires keras_vit with TensorFlow, matplotlib and, without --data, scikit-learn.
"""

import csv

import numpy as np
import study  # first, as it sets the log level of TensorFlow

import keras_vit
from keras_vit.analysis import plots

STEPS = 1170  # 30 passes over 5,000 images
POINTS = 15  # of a curve in the figure
RECIPE = keras_vit.training.RECIPES["cifar10/scratch"].replace(learning_rate=1e-3)
VIT = RECIPE.model.replace(name="ViT", hidden_dim=128, num_layers=4, mlp_dim=256)
HYBRID = VIT.replace(
    name="hybrid", stem=keras_vit.ResNetConfig(stage_sizes=(1,), width_factor=1.0), patch_size=1, num_layers=3
)

# run -> model, changes of the recipe
_OFF = {"mix": (), "label_smoothing": 0.0, "drop_path_rate": 0.0, "attention_dropout_rate": 0.0}
RUNS = {
    "none": (VIT, {"augment": (), **_OFF}),
    "crop, flip": (VIT, {"augment": RECIPE.augment[:2], **_OFF}),
    "RandAugment": (VIT, _OFF),
    "whole recipe": (VIT, {}),
    "hybrid": (HYBRID, {}),
}
TINY = ("none", "hybrid")


def main():
    args = study.parse_arguments(__doc__.splitlines()[0], STEPS, seeds=1)
    train, test = study.open_sources(args.data)
    channels = train.dataset.element_spec["image"].shape[-1]
    share = RECIPE.warmup_epochs / RECIPE.epochs
    rows, curves = [], {}
    for seed in range(args.seeds):
        for name in TINY if args.tiny else RUNS:
            config, changes = RUNS[name]
            recipe = RECIPE.replace(steps=args.steps, warmup_fraction=share, seed=seed, **changes)
            folder = args.output / f"{name.replace(', ', '_').replace(' ', '_')}_{args.steps}_{seed}"
            config = config.replace(channels=channels)
            history = keras_vit.train(recipe, train, folder, model=config, validation=test, verbose=0).history
            accuracies = history["val_accuracy"]
            print(f"{name}, seed {seed}: {100 * accuracies[-1]:.1f} %", flush=True)
            steps = np.arange(1, len(accuracies) + 1) * args.steps // len(accuracies)
            rows += zip([name] * len(steps), [seed] * len(steps), steps, history["loss"], accuracies, strict=True)
            curves.setdefault(name, []).append(accuracies)
    with open(args.output / "from_scratch.csv", "w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerows([("run", "seed", "step", "train_loss", "test_accuracy"), *rows])
    _report(curves, steps, args.output)


def _report(curves, steps, folder):
    """Print and draw the accuracies {run: one list over `steps` per seed}."""
    shown = np.linspace(0, len(steps), min(POINTS, len(steps)) + 1).round().astype(int)[1:] - 1
    quarters = np.linspace(0, len(steps), min(4, len(steps)) + 1).round().astype(int)[1:] - 1
    width = max(map(len, curves))
    print("\n" + "  ".join(["run".ljust(width), *(f"{step:>6,}" for step in steps[quarters])]))
    for name, accuracies in curves.items():
        mean = np.mean(accuracies, 0)
        print("  ".join([name.ljust(width), *(f"{100 * mean[at]:6.1f}" for at in quarters)]))
        curves[name] = list(zip(steps[shown], mean[shown], strict=True))
    figure = plots.scaling_curves(curves, xlabel="steps", ylabel="accuracy on the test images (%)")
    figure.axes[0].set_xscale("linear")
    figure.savefig(folder / "from_scratch.png")
    print(f"\nsaved: from_scratch.csv, from_scratch.png in {folder}")


if __name__ == "__main__":
    main()
