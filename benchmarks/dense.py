"""Measure `evaluation.dense_probe` on scenes of real images: how the features segment at several resolutions.

A scene is an ImageNet image of 96 x 96 pixels with four images of CIFAR-10 of 32 x 32 on it, one in each quarter; the
classes of its pixels are the ten of CIFAR-10 and the background.
"""

import numpy as np

from benchmarks.contenders import quietly
from benchmarks.report import Table

SCENE, OBJECT, PATCH = 96, 32, 16
SCALES, SEEDS = (1, 2, 3), (0, 1, 2)
TRAIN, TEST, BATCH = 400, 200, 20
NOTE = (
    "Mean intersection over union in percent, of the patch tokens of ViT-Ti/16 after its last norm and of the raw "
    f"pixels of the same patches. The ridge regression is fitted to {TRAIN} scenes and measured on {TEST} others. A "
    "scene has 96 x 96 pixels: four images of CIFAR-10 on an ImageNet image; the classes are ten and the background. "
    "Scenes are enlarged bilinearly to the size of the row."
)


def run(options):
    if options.real_data is None:
        return
    rows = []
    for scale in options.choose(SCALES):
        found = [measure(options.real_data, scale, seed) for seed in SEEDS]
        rows.append((SCENE * scale, *(f"{100 * value:.1f}" for pair in found for value in pair)))
    columns = [f"{name}, seed {seed}" for seed in SEEDS for name in ("ViT-Ti/16", "pixels")]
    yield Table("Dense probe", NOTE, ("px", *columns), rows)


def measure(real_data, scale, seed):
    """Return the mean intersection over union of the features and of raw pixels."""
    import keras_vit

    weights = real_data / "weights" / "ViT-Ti_16-imagenet2012-224.npz"
    vit = quietly(keras_vit.ViT_Ti16, weights=weights, image_size=SCENE * scale)
    parts = {"train": scenes(real_data, "train", TRAIN, seed), "test": scenes(real_data, "test", TEST, seed)}
    results = []
    for model in (vit, _pixels(SCENE * scale)):
        data = {name: list(_batches(*part, scale)) for name, part in parts.items()}
        results.append(keras_vit.evaluation.dense_probe(model, data["train"], data["test"], classes=11).mean_iou)
    return tuple(results)


def scenes(real_data, part, count, seed):
    """Return uint8 images (count, 96, 96, 3) and masks (count, 96, 96); 0 is the background."""
    import keras_vit

    rng = np.random.default_rng((seed, part == "test"))
    cifar = np.load(real_data / "cifar10_small.npz")
    files = sorted((real_data / "imagenet200").glob("*/*.JPEG"))
    files = files[: len(files) // 2] if part == "train" else files[len(files) // 2 :]
    plain = keras_vit.Preprocessing(size=SCENE, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    backgrounds = keras_vit.preprocess(files, plain).round().astype("uint8")
    images, masks = backgrounds[rng.integers(0, len(backgrounds), count)], np.zeros((count, SCENE, SCENE), "int64")
    half, spare = SCENE // 2, SCENE // 2 - OBJECT + 1
    for quarter in range(4):
        chosen = rng.integers(0, len(cifar[f"x_{part}"]), count)
        objects, labels = cifar[f"x_{part}"][chosen], cifar[f"y_{part}"][chosen].ravel()
        tops, lefts = (half * place + rng.integers(0, spare, count) for place in divmod(quarter, 2))
        for image, mask, pasted, label, top, left in zip(images, masks, objects, labels, tops, lefts, strict=True):
            area = slice(top, top + OBJECT), slice(left, left + OBJECT)
            image[area], mask[area] = pasted, label + 1
    return images, masks


def _batches(images, masks, scale):
    """Yield prepared images and masks, `scale` times as large."""
    import keras

    enlarge = keras.layers.UpSampling2D(scale, "channels_last", "bilinear" if scale > 1 else "nearest")
    for start in range(0, len(images), BATCH):
        prepared = np.asarray(enlarge(images[start : start + BATCH].astype("float32"))) / 127.5 - 1
        yield prepared, masks[start : start + BATCH].repeat(scale, axis=1).repeat(scale, axis=2)


def _pixels(size):
    """Return a model from images to the raw pixels of their patches."""
    import keras
    from keras import ops

    side, images = size // PATCH, keras.Input((size, size, 3))
    cut = ops.transpose(ops.reshape(images, (-1, side, PATCH, side, PATCH, 3)), (0, 1, 3, 2, 4, 5))
    return keras.Model(images, ops.reshape(cut, (-1, side, side, PATCH * PATCH * 3)), name="pixels")
