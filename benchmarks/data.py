"""Pictures per second from JPEG to batches at 224 px, beside keras-cv and Keras: `python -m benchmarks.data`.

Every row is the same pipeline, Inception crop and flip, with one thing more: ours, keras-cv's or Keras's. The rows take
turns, for some seconds each, in one process; the first batch of a turn is not counted. Medians of the turns. Speed per
core is pictures per second of processor time of the whole process, which other programs disturb less than the clock.
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
import time

import keras
import numpy as np
import PIL.Image
import tensorflow as tf

import keras_vit
from keras_vit.data import from_folder, train_pipeline

LEVELS = keras_vit.Preprocessing(size=224, mean=(0.0,) * 3, std=(1 / 255,) * 3)  # what the layers expect: [0, 255]
CROP = ("inception_crop", "flip")
BASE = "inception_crop, flip"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="class folders of JPEGs; without it 256 of 500 x 375 pixels are made up")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one turn of one row")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = from_folder(arguments.folder or write_pictures(pathlib.Path(folder)))
        pipelines = build(source, arguments.batch)
        print_table(measure(pipelines, arguments.rounds, arguments.seconds), arguments.batch)


def write_pictures(folder, count=256, classes=8):
    """Writes JPEGs of about 80 kB: noise on several scales, as photographs have it."""
    rng = np.random.default_rng(0)
    for number in range(count):
        levels = np.full((375, 500, 3), 128.0)
        for scale in (4, 16, 64, 250):
            noise = rng.normal(0, 30, (375 // scale + 1, 500 // scale + 1, 3)).astype(np.float32)
            levels += tf.image.resize(noise, (375, 500), "bicubic").numpy()
        file = folder / str(number % classes) / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8)).save(file, quality=90)
    return folder


def build(source, batch):
    """{name of the row: data set of batches without end}."""
    import keras_cv

    ours = functools.partial(train_pipeline, source, LEVELS, batch)
    classes = len(source.class_names)

    def on_pictures(layer):
        return ours(augment=CROP).map(lambda images, labels: (layer(images, training=True), labels))

    def on_both(layer):
        def mix(images, labels):
            mixed = layer({"images": images, "labels": tf.one_hot(labels, classes)}, training=True)
            return mixed["images"], mixed["labels"]

        return ours(augment=CROP).map(mix)

    keras_cv_randaugment = keras_cv.layers.RandAugment((0, 255), augmentations_per_image=2, magnitude=0.5, rate=1.0)
    return {
        "decode and resize": ours(),
        BASE: ours(augment=CROP),
        "+ randaugment(2, 10)": ours(augment=(*CROP, "randaugment(2, 10)")),
        "+ RandAugment of keras-cv, 2 operations": on_pictures(keras_cv_randaugment),
        "+ RandAugment of Keras, 2 operations": on_pictures(keras.layers.RandAugment((0, 255), num_ops=2)),
        "+ mixup(0.2)": ours(augment=CROP, mix=("mixup(0.2)",)),
        "+ MixUp of keras-cv": on_both(keras_cv.layers.MixUp(0.2)),
        "+ MixUp of Keras": on_both(keras.layers.MixUp(0.2)),
        "+ randaugment(2, 10), mixup(0.2)": ours(augment=(*CROP, "randaugment(2, 10)"), mix=("mixup(0.2)",)),
        "+ timm_randaugment, random_erasing(0.25)": ours(augment=(*CROP, "timm_randaugment", "random_erasing(0.25)")),
    }


def measure(pipelines, rounds, seconds):
    """{name: (median pictures per second of the clock, median pictures per second of processor time)}."""
    speeds = {name: [] for name in pipelines}
    for _ in range(rounds):
        for name, dataset in pipelines.items():
            batches = iter(dataset)
            next(batches)
            wall, processor, count = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - wall < seconds:
                count += len(next(batches)[0])
            speeds[name].append((count / (time.perf_counter() - wall), count / (time.process_time() - processor)))
            del batches
    return {name: tuple(map(statistics.median, zip(*pairs, strict=True))) for name, pairs in speeds.items()}


def print_table(speeds, batch):
    print(f"224 px, batches of {batch}, keras {keras.__version__}, tensorflow {tf.__version__}")
    print(f"{'':42}{'pictures/s':>12}{'per core':>10}{'ms of a core':>14}{'what is added':>15}")
    base = 1000 / speeds[BASE][1]
    added = {name: 1000 / core - base for name, (_, core) in speeds.items()}
    for name, (wall, core) in speeds.items():
        cost = f"{added[name]:+15.2f}" if name.startswith("+") else ""
        print(f"{name:42}{wall:12.0f}{core:10.0f}{1000 / core:14.2f}{cost}")
    for ours, theirs in (("+ randaugment", "+ RandAugment"), ("+ mixup", "+ MixUp")):
        own = next(name for name in speeds if name.startswith(ours))
        for name in (name for name in speeds if name.startswith(theirs)):
            ratio = speeds[own][1] / speeds[name][1]
            print(f"whole pipeline, ours over {name[2:]}: {ratio:.2f} times the pictures per core")


if __name__ == "__main__":
    main()
