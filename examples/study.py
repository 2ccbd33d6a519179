"""Shared code of the studies, whose arguments and images it reads.

For scaling_study.py and data_size_study.py, it trains models alike and measures their few-shot accuracy.

The paper trains on a large set and measures few-shot accuracy on other sets (section 4.1). Here there is one set of ten
classes. A model is trained on all of them. The probe learns from `SHOTS` images of each class, taken from a tenth of
the training part that is held out. The accuracy is measured on the whole test part; it is the mean over `DRAWS` draws,
which are the same for every model. Splitting the classes between training and probe would leave five classes for
training, which are too few: on the digits, the probe then gains nothing. The untrained model is a better baseline than
chance.

Every model is trained by `RECIPE` for the same number of steps, so images of a smaller set are seen more often. As in
section 4.3 of the paper, nothing else changes for smaller sets. The weights are those of the best of up to `CHECKS`
validations on the held-out tenth (early stopping).
"""

import argparse
import csv
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.models.costs import count_macs

RECIPE = keras_vit.training.RECIPES["quickstart"].replace(learning_rate=1e-3, weight_decay=0.1)
IMAGE_SIZE = 32  # of CIFAR; digits have 8 pixels and are enlarged, so that the same models fit
HELD_OUT = 0.1
SHOTS, DRAWS, CHECKS = 5, 10, 10
TINY_IMAGES = 128  # to measure on
_DATA = ".npz of x_train y_train x_test y_test, or cifar10, which Keras downloads"

_MODELS = {"vit": keras_vit.VisionTransformer, "bit": keras_vit.BiTResNet}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A point of a figure: a model and its share of the training images.

    Attributes:
        curve, point: its names in table and figure, such as `"depth"` and `"8 blocks"`.
        config: config of the model; classes and channels come from the images.
        share: share of the training images, drawn at random; 0 leaves the model untrained.
    """

    curve: str
    point: str
    config: keras_vit.ViTConfig | keras_vit.BiTConfig
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the CSV file: the results of one training. Accuracies are in [0, 1], NaN if untrained.

    Attributes:
        curve, point: of the trial.
        seed: of the initial weights, the drawn share, the order of the images and the augmentation.
        steps, images: of the training.
        parameters, macs: of the model; multiply-accumulates per image.
        train_accuracy: on the augmented images of the steps before the best validation.
        validation_accuracy: the best accuracy of the model's own head.
        few_shot, few_shot_std: mean and population standard deviation over the draws.
        settings: digest of everything that determines the other columns.
    """

    curve: str
    point: str
    seed: int
    steps: int
    images: int
    parameters: int
    macs: int
    train_accuracy: float
    validation_accuracy: float
    few_shot: float
    few_shot_std: float
    settings: str


@dataclasses.dataclass(frozen=True)
class Images:
    """The data of a study.

    Attributes:
        train: source of the images to train on.
        preprocessing: `Preprocessing` of every model.
        validation: batches of (inputs, labels) in memory, for early stopping and for the shots.
        test: batches of (inputs, labels) in memory, to measure on.
        digest: digest of the contents.
    """

    train: keras_vit.data.ImageSource
    preprocessing: keras_vit.Preprocessing
    validation: tf.data.Dataset
    test: tf.data.Dataset
    digest: str


def parse_arguments(description, steps=400, seeds=3):
    """Return the arguments of a study; create the folder for its output.

    Args:
        description: of the study.
        steps, seeds: the defaults of these arguments.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", metavar="FILE", help=f"{_DATA} (default: digits)")
    parser.add_argument("--output", metavar="DIR", help="folder of table and figure (default: a new one)")
    parser.add_argument("--steps", metavar="N", type=int, default=steps, help="steps of each training")
    parser.add_argument("--seeds", metavar="N", type=int, default=seeds, help="trainings of each model")
    parser.add_argument("--tiny", action="store_true", help="train few models for one step, to try the script")
    args = parser.parse_args()
    if args.steps < 1 or args.seeds < 1:
        parser.error(f"--steps and --seeds must be at least 1; got {args.steps} and {args.seeds}")
    if args.tiny:
        args.steps, args.seeds = 1, 1
    args.output = pathlib.Path(args.output or tempfile.mkdtemp(prefix="keras_vit_study_"))
    args.output.mkdir(parents=True, exist_ok=True)
    return args


def open_sources(path=None):
    """Return the training and the test images as sources.

    Args:
        path: path of an `.npz` file; `"cifar10"` for the whole CIFAR-10, which Keras downloads; None for scikit-learn's
            digits.
    """
    if path is None:
        return keras_vit.data.from_digits()
    if path == "cifar10":
        return tuple(keras_vit.data.from_arrays(*part) for part in keras.datasets.cifar10.load_data())
    return tuple(keras_vit.data.from_npz(path, part) for part in ("train", "test"))


def open_images(path=None, limit=None):
    """Return the `Images` of a study with few-shot accuracies.

    Args:
        path: as for `open_sources`.
        limit: maximum number of images for validation, and for test; None for all.
    """
    train, test = open_sources(path)
    contents = str(path or "digits").encode() if path in (None, "cifar10") else pathlib.Path(path).read_bytes()
    train, validation = train.split(HELD_OUT)
    channels = train.dataset.element_spec["image"].shape[-1]
    preprocessing = keras_vit.Preprocessing(size=IMAGE_SIZE, mean=(0.5,) * channels, std=(0.5,) * channels)
    return Images(
        train,
        preprocessing,
        _batches(validation, preprocessing, limit),
        _batches(test, preprocessing, limit),
        digest=hashlib.sha256(contents + str(limit).encode()).hexdigest(),
    )


def run(trials, images, file, steps, seeds):
    """Train and measure every trial once per seed, and print a line for each.

    Rows of `file` with the same settings are not trained again, so an interrupted study resumes, and a larger number of
    seeds trains only the new ones. Rows with other settings stay in the file.

    Returns:
        Dict from trial to its list of `Row`s, one per seed.
    """
    rows = _read(file)
    found = {trial: [] for trial in trials}
    trained = 0
    for seed in range(seeds):  # the outer loop, so that an interrupted study has every model of the first seed
        recipe = RECIPE.replace(steps=steps, seed=seed)
        for trial in trials:
            classes, channels = len(images.train.class_names), images.preprocessing.channels
            config = trial.config.replace(classes=classes, channels=channels)
            settings = _digest(config.to_dict(), trial.share, recipe.to_dict(), images.digest, SHOTS, DRAWS, CHECKS)
            if settings not in rows:
                start = time.perf_counter()
                measured = _measure(config, images, trial.share, recipe)
                rows[settings] = Row(trial.curve, trial.point, seed, **measured, settings=settings)
                _write(file, rows.values())
                trained += 1
                seconds = time.perf_counter() - start
                accuracy = f"few-shot {100 * rows[settings].few_shot:.1f} %"
                print(f"{trial.curve}, {trial.point}, seed {seed}: {accuracy} in {seconds:.0f} s", flush=True)
            found[trial].append(rows[settings])
    print(f"trained: {trained} of {seeds * len(trials)}, the others were in {file.name}\n")
    return found


def mean(rows, name):
    """Return the mean of a column over the rows of a trial."""
    return float(np.mean([getattr(row, name) for row in rows]))


def print_table(head, columns, found):
    """Print a line per trial: its names, its own columns, and percentages over the seeds.

    Args:
        head: titles of the two names of a trial.
        columns: dict from title to a function from a `Row` to a string, equal for every seed.
        found: the result of `run`.
    """
    table = [(*head, *columns, "train %", "validation %", f"{SHOTS}-shot %", "+-")]
    for trial, rows in found.items():
        texts = [text(rows[0]) for text in columns.values()]
        texts += [_percent(mean(rows, name)) for name in ("train_accuracy", "validation_accuracy", "few_shot")]
        spread = _percent(np.std([row.few_shot for row in rows])) if len(rows) > 1 else ""
        table.append((trial.curve, trial.point, *texts, spread))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        names = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
        print("  ".join(names + numbers).rstrip())


def _percent(share):
    return "" if np.isnan(share) else f"{100 * share:.1f}"


def _batches(source, preprocessing, limit):
    elements = list(source.dataset.take(-1 if limit is None else limit).as_numpy_iterator())
    inputs = keras_vit.preprocess(np.stack([element["image"] for element in elements]), preprocessing)
    labels = [element["label"] for element in elements]
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(RECIPE.batch_size)


def _measure(config, images, share, recipe):
    """Train a model; return the fields of its `Row`."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(recipe.seed)
    model = _MODELS[config.network](config, preprocessing=images.preprocessing)
    count = round(share * images.train.size)
    drawn = np.random.default_rng(recipe.seed).permutation(images.train.size)[:count]  # nested shares
    train, validation = np.nan, np.nan
    if count:
        train, validation = _fit(model, images.train.take(drawn), images.validation, recipe)
    found = keras_vit.evaluation.few_shot(model, images.validation, images.test, SHOTS, range(DRAWS))
    return {
        "steps": recipe.steps if count else 0,
        "images": count,
        "parameters": model.count_params(),
        "macs": count_macs(model),
        "train_accuracy": train,
        "validation_accuracy": validation,
        "few_shot": found.mean[SHOTS],
        "few_shot_std": found.std[SHOTS],
    }


def _fit(model, train, validation, recipe):
    """Train a model to the weights of the best validation; return its training and validation accuracy there."""
    epochs = max(count for count in range(1, CHECKS + 1) if recipe.steps % count == 0)
    batches = keras_vit.data.train_pipeline(
        train, model.preprocessing, recipe.batch_size, seed=recipe.seed, augment=recipe.augment
    )
    recipe.compile(model)
    history = model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=recipe.steps // epochs,
        validation_data=validation,
        callbacks=[keras.callbacks.EarlyStopping("val_accuracy", patience=epochs, restore_best_weights=True)],
        shuffle=False,  # the pipeline shuffles
        verbose=0,
    ).history
    best = int(np.argmax(history["val_accuracy"]))
    return history["accuracy"][best], history["val_accuracy"][best]


def _digest(*values):
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _read(file):
    """Return a dict from settings to `Row`; it is empty if the file does not exist."""
    if not file.exists():
        return {}
    types = {field.name: field.type for field in dataclasses.fields(Row)}
    with open(file, encoding="utf-8", newline="") as lines:
        rows = [Row(**{name: types[name](text) for name, text in line.items()}) for line in csv.DictReader(lines)]
    return {row.settings: row for row in rows}


def _write(file, rows):
    partial = file.with_suffix(".partial")
    with open(partial, "w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(dataclasses.asdict, rows))
    os.replace(partial, file)  # the file is complete even if the study is interrupted
