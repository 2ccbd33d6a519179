"""Measure self-distillation: `python -m benchmarks.self_distillation --data cifar10_small.npz`.

A small ViT learns from all training images, without their labels, by self-distillation (`keras_vit.SelfDistillation`).
Before and after, the training images vote on the classes of the test images (`keras_vit.evaluation.knn`, 20 neighbours,
T = 0.07), with the features of the teacher. The seed determines the random weights, the order of the images and the
crops. The entropies are those of the last epoch: `teacher` is the mean for a crop, `batch` that of the mean over a
batch; if both are nearly equal, the teacher has collapsed.

The data are one `.npz` file as in `benchmarks.masked_patches`.
"""

import argparse

import keras_vit
from benchmarks import masked_patches

SIZES = {"hidden_dim": 96, "num_layers": 4, "num_heads": 4, "mlp_dim": 192}
HEAD = {"out_dim": 512, "hidden_dim": 512, "bottleneck_dim": 128}
TEACHER = {"teacher_temperature": 0.04, "warmup_epochs": 0, "freeze_epochs": 0, "teacher_momentum": 0.98}
COLOURS = ("flip", "color_jitter(0.4, 0.4, 0.2, 0.1, 0.8)", "grayscale(0.2)")  # without blur, for 32 pixels
CROPS = {"local_crops": 4, "local_size": 16, "augment": (COLOURS, (*COLOURS, "solarize(0.2)"), COLOURS)}
RECIPE = {"learning_rate": 2e-3, "final_weight_decay": None, "drop_path_rate": None, "image_size": None}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data", help=".npz file of the images")
    parser.add_argument("--steps", type=int, default=3120)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    data = masked_patches.read(arguments.data)
    found = [run(arguments, data, seed) for seed in arguments.seeds]
    print("seed  before %  after %   gain  teacher  batch")
    for seed, (before, after, teacher, batch) in zip(arguments.seeds, found, strict=True):
        gain = f"{100 * (after - before):+.1f}"
        print(f"{seed:4}  {100 * before:8.1f}  {100 * after:7.1f}  {gain:>5}  {teacher:7.2f}  {batch:5.2f}", flush=True)


def run(arguments, data, seed):
    """Return the accuracies before and after, and both entropies of the last epoch."""
    config = keras_vit.ViTConfig(
        name="small",
        image_size=data["x_train"].shape[1:3],
        patch_size=8,
        include_top=False,
        pooling="gap",
        position_embedding="sincos2d",
        **SIZES,
    )
    student = keras_vit.resize(masked_patches.build(config, seed), "any")
    model = keras_vit.SelfDistillation(student, **HEAD, **TEACHER)
    parts = [masked_patches.source(data, part) for part in ("train", "test")]
    before = keras_vit.evaluation.knn(model.teacher, *parts).top1[20]
    recipe = keras_vit.training.RECIPES["dino/imagenet"].replace(
        **RECIPE, steps=arguments.steps, warmup_fraction=0.1, batch_size=arguments.batch_size, crops=CROPS, seed=seed
    )
    with masked_patches.timed(f"seed {seed}, {arguments.steps} steps"):
        history = masked_patches.train(recipe, parts[0], model).history
    after = keras_vit.evaluation.knn(model.teacher, *parts).top1[20]
    return before, after, history["teacher_entropy"][-1], history["batch_entropy"][-1]


if __name__ == "__main__":
    main()
