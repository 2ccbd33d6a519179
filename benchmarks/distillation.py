"""Measure the gain from distillation: `python -m benchmarks.distillation --weights ViT-Ti_16.npz --data cifar10.npz`.

The teacher is a ViT-Ti/16, fine-tuned on all training images as in `benchmarks.finetune`. It teaches a small ViT at 32
pixels on a few of these images (`--images`, the same number per class). For comparison, the same student is trained on
their labels alone, for the same number of steps, from the same initial weights, on the same crops in the same order.
The data are an `.npz` file as in `benchmarks.finetune`. `--teacher FILE` loads the teacher from this file, or trains it
and saves it there if the file does not exist. One row is printed per run, then a table of the accuracies on the test
images by arm and seed.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import keras
import numpy as np

import keras_vit
from benchmarks import finetune

STUDENT = keras_vit.ViTConfig(
    name="ViT-small-images",
    image_size=32,
    patch_size=4,
    hidden_dim=96,
    num_layers=4,
    num_heads=3,
    mlp_dim=192,
    position_embedding="sincos2d",
)
HEADS = {1: {"pooling": "gap"}, 2: {"distilled": True}}

RECIPE = keras_vit.training.Recipe(
    name="distillation",
    source="this project: minutes on a CPU core, for some hundred images of CIFAR-10",
    optimizer="adamw",
    learning_rate=1e-3,
    batch_size=32,
    steps=1200,
    warmup_fraction=0.05,
    weight_decay=0.05,
    clip_norm=1.0,
    augment=("inception_crop(0.2)", "flip"),  # on milder crops, hard targets mostly equal the labels
    image_size=32,
)

SHOWN = ("accuracy", "loss", "distillation_loss", "teacher_agreement")  # final values in training

# arm -> arguments of the Distiller; None trains without a teacher
ARMS = {
    "labels": None,
    "hard": {"mode": "hard"},
    "soft": {"mode": "soft", "alpha": 0.9, "temperature": 4.0},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--weights", help="weights of a ViT-Ti/16, to fine-tune the teacher from")
    parser.add_argument("--data", required=True, help=".npz file of the images")
    parser.add_argument("--teacher", help=".keras file of the teacher; created if absent")
    parser.add_argument("--teacher-size", type=int, default=64, help="image size of a new teacher")
    parser.add_argument("--teacher-steps", type=int, default=finetune.CHANGES["steps"], help="steps of its fine-tuning")
    parser.add_argument("--images", type=int, default=500, help="training images of the students")
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help="steps of each student")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--heads", type=int, choices=HEADS, default=1, help="heads of the student")
    arguments = parser.parse_args()
    train, test = finetune.read(arguments.data)
    teacher = make_teacher(arguments, train)
    print(f"teacher: {keras_vit.evaluate(teacher, test, top=1)}", flush=True)
    student = STUDENT.replace(classes=len(train.class_names), **HEADS[arguments.heads])
    recipe, few = RECIPE.replace(steps=arguments.steps), read_few(arguments.data, arguments.images)
    found = {arm: [] for arm in arguments.arms}
    for seed in range(arguments.seeds):
        for arm, scores in found.items():
            scores.append(teach(arm, student, teacher, recipe.replace(seed=seed), few, test))
    print_table(found)


def read_few(path, count):
    """Return a source of `count` training images: the first ones of each class, the same number per class."""
    with np.load(path, allow_pickle=False) as arrays:
        images, labels = arrays["x_train"], arrays["y_train"]
    classes = np.unique(labels)
    rows = np.sort(np.concatenate([np.flatnonzero(labels == one)[: count // len(classes)] for one in classes]))
    return keras_vit.data.from_arrays(images[rows], labels[rows])


def make_teacher(arguments, train):
    """Load the model from the file `--teacher`, or fine-tune one and save it there."""
    path = None if arguments.teacher is None else pathlib.Path(arguments.teacher)
    if path is not None and path.exists():
        return keras.models.load_model(path, compile=False)
    size = arguments.teacher_size
    changes = {
        "image_size": size,
        "steps": arguments.teacher_steps,
        "augment": (f"random_crop({size * 8 // 7})", "flip"),
    }
    recipe = keras_vit.training.RECIPES[finetune.RECIPE].replace(**{**finetune.CHANGES, **changes})
    with tempfile.TemporaryDirectory() as folder:
        teacher = keras_vit.train(recipe, train, folder, model="ViT-Ti_16", weights=arguments.weights, verbose=2).model
    if path is not None:
        teacher.save(path)
    return teacher


def teach(arm, config, teacher, recipe, train, test):
    """Train a student and return its accuracy on the test images, in [0, 1]."""
    start = time.perf_counter()
    keras.utils.set_random_seed(recipe.seed)
    student = keras_vit.VisionTransformer(config)
    model = student if ARMS[arm] is None else keras_vit.Distiller(student, teacher, **ARMS[arm])
    with tempfile.TemporaryDirectory() as folder:
        trained = keras_vit.train(recipe, train, folder, model=model, verbose=0)
    found = keras_vit.evaluate(trained.model, test, batch_size=recipe.batch_size, top=1)
    shown = ", ".join(f"{name} {values[-1]:.3f}" for name, values in trained.history.items() if name in SHOWN)
    minutes = (time.perf_counter() - start) / 60
    print(f"seed {recipe.seed}, {arm}: {found} in {minutes:.1f} minutes ({shown})", flush=True)
    return found.top[1]


def print_table(found):
    seeds = range(len(next(iter(found.values()))))
    print(f"{'':>8}" + "".join(f"{f'seed {seed}':>9}" for seed in seeds) + f"{'mean':>9}")
    for arm, scores in found.items():
        figures = [*scores, statistics.mean(scores)]
        print(f"{arm:>8}" + "".join(f"{100 * score:>7.1f} %" for score in figures))


if __name__ == "__main__":
    main()
