"""Endless batches at 224 px from JPEG files in this package and in other libraries, each as its users write it.

Every function returns the work of one contender, see contest.py: a function that returns the next batch of 32 images,
float32 on [-1, 1]. Training shuffles; evaluation reads the files in order. `kind` is `crop` (Inception crop and flip),
`randaugment` (these and RandAugment with two operations, which is applied before the values are scaled) or `evaluation`
(resize the shorter side to 256, center crop).
"""

import concurrent.futures
import math
import os
import pathlib

import numpy as np

SIZE, SHORTER, BATCH = 224, 256, 32
AREA, ASPECT = (0.05, 1.0), (0.75, 1.33)


def keras_vit(folder, kind, **arguments):
    import keras_vit as package
    from keras_vit.data import eval_pipeline, from_directory, train_pipeline

    source = from_directory(folder)
    if kind == "evaluation":
        preprocessing = package.Preprocessing(size=SHORTER, crop=(SIZE, SIZE))
        source = source.take(np.arange(math.lcm(source.size, BATCH)) % source.size)  # fills the last batch
        return _next_of(eval_pipeline(source, preprocessing, BATCH, **arguments).repeat())
    augment = ("inception_crop", "flip", "randaugment(2, 10)")[: 3 if kind == "randaugment" else 2]
    return _next_of(train_pipeline(source, package.Preprocessing(size=SIZE), BATCH, augment=augment))


def tf_image(folder, kind, randaugment=None):
    """Use tf.image as the official JAX code does; `randaugment` is None, `"keras"` or `"keras_cv"`."""
    import tensorflow as tf

    def evaluated(image):
        sides = tf.cast(tf.shape(image)[:2], tf.float32)
        resized = tf.cast(tf.round(sides * SHORTER / tf.reduce_min(sides)), tf.int32)
        top, left = tf.unstack((resized - SIZE) // 2)
        return tf.image.resize(image, resized)[top : top + SIZE, left : left + SIZE]

    def cropped(image):
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros((0, 0, 4)),
            area_range=AREA,
            aspect_ratio_range=ASPECT,
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.slice(image, start, size)
        image.set_shape((None, None, 3))
        image = tf.image.resize(image, (SIZE, SIZE))
        return tf.cond(tf.random.uniform(()) > 0.5, lambda: tf.image.flip_left_right(image), lambda: image)

    change = evaluated if kind == "evaluation" else cropped
    if randaugment is None:
        return _next_of(_batches(_images(folder, kind).map(lambda image: (change(image) - 127.5) / 127.5, -1)))
    layer = {"keras": _keras_randaugment, "keras_cv": _keras_cv_randaugment}[randaugment]()
    batches = _images(folder, kind).map(change, -1).batch(BATCH, drop_remainder=True)
    return _next_of(batches.map(lambda images: (layer(images, training=True) - 127.5) / 127.5, -1).prefetch(2))


def keras_cv(folder, kind):
    import keras_cv as package

    if kind == "evaluation":
        layers = package.layers.Resizing(SHORTER, SHORTER, crop_to_aspect_ratio=True), _center_crop()
    else:
        layers = package.layers.RandomCropAndResize((SIZE, SIZE), AREA, ASPECT), package.layers.RandomFlip()
    return _layers_of_keras(folder, kind, *layers)


def keras(folder, kind):
    """Use Keras's layers. Keras has no crop of a random size: the image is resized to 256 x 256, then cropped."""
    import keras as package

    if kind == "evaluation":
        layers = package.layers.Resizing(SHORTER, SHORTER, crop_to_aspect_ratio=True), _center_crop()
        return _layers_of_keras(folder, kind, *layers)
    layers = package.layers.Resizing(SHORTER, SHORTER), package.layers.RandomCrop(SIZE, SIZE)
    return _layers_of_keras(folder, kind, *layers, package.layers.RandomFlip("horizontal"))


def pillow(folder, kind):
    """Use Pillow in one thread per core; it releases the GIL while it decodes and resizes."""
    import PIL.Image

    files, rng = _files(folder), np.random.default_rng(0)
    order = _endless(len(files), rng if kind != "evaluation" else None)

    def read(job):
        number, seed = job
        rng = np.random.default_rng(seed)
        with PIL.Image.open(files[number]) as file:
            image = file.convert("RGB")
        if kind == "evaluation":
            scale = SHORTER / min(image.size)
            image = image.resize([round(side * scale) for side in image.size], PIL.Image.Resampling.BILINEAR)
            left, top = ((side - SIZE) // 2 for side in image.size)
            return np.asarray(image.crop((left, top, left + SIZE, top + SIZE)))
        box = _window(*image.size, rng)
        image = image.resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR, box)
        if rng.random() < 0.5:
            image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    def submit():
        return [pool.submit(read, (next(order), rng.integers(2**63))) for _ in range(BATCH)]

    waiting = [submit(), submit()]

    def work():
        waiting.append(submit())
        images = np.stack([job.result() for job in waiting.pop(0)]).astype(np.float32)
        images -= 127.5
        images /= 127.5
        return images

    return work


def _window(width, height, rng):
    """Return (left, top, right, bottom) of a random crop with TensorFlow's distribution."""
    for _ in range(100):
        aspect, area = rng.uniform(*ASPECT), width * height
        least, most = (round(math.sqrt(share * area / aspect)) for share in AREA)
        rows = rng.integers(least, min(most, height, int(width / aspect)), endpoint=True)
        columns = round(rows * aspect)
        if AREA[0] * area <= rows * columns and columns <= width:
            left, top = rng.integers(0, max(width - columns, 1)), rng.integers(0, max(height - rows, 1))
            return left, top, left + columns, top + rows
    return 0, 0, width, height


def _endless(size, rng):
    while True:
        yield from range(size) if rng is None else rng.permutation(size)


def _files(folder):
    names = (".jpg", ".jpeg")
    return sorted(str(path) for path in pathlib.Path(folder).glob("*/*") if path.suffix.lower() in names)


def _images(folder, kind):
    """Return an endless dataset of decoded images."""
    import tensorflow as tf

    files = _files(folder)
    names = tf.data.Dataset.from_tensor_slices(files)
    names = (names if kind == "evaluation" else names.shuffle(len(files))).repeat()
    return names.map(lambda name: tf.io.decode_jpeg(tf.io.read_file(name), channels=3), tf.data.AUTOTUNE)


def _batches(images):
    return images.batch(BATCH, drop_remainder=True).prefetch(2)


def _layers_of_keras(folder, kind, *layers):
    """Apply all layers but the last to each image, because sizes differ; apply the last one and scale per batch."""
    *single, last = layers

    def change(image):
        for layer in single:
            image = layer(image, training=True)
        return image

    def finish(images):
        return (last(images, training=True) - 127.5) / 127.5

    return _next_of(_images(folder, kind).map(change, -1).batch(BATCH, drop_remainder=True).map(finish, -1).prefetch(2))


def _center_crop():
    import keras

    return keras.layers.CenterCrop(SIZE, SIZE)


def _keras_randaugment():
    import keras

    return keras.layers.RandAugment((0, 255), num_ops=2)


def _keras_cv_randaugment():
    import keras_cv

    return keras_cv.layers.RandAugment((0, 255), augmentations_per_image=2, magnitude=0.5, rate=1.0)


def _next_of(dataset):
    """Return a function that returns the images of the next batch."""
    batches = iter(dataset)

    def work():
        batch = next(batches)
        return batch[0] if isinstance(batch, tuple) else batch

    return work
