"""Batches for native aspect ratios: their numbers, sizes and order; patches of drawn sizes."""

import math

import keras
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from faults import for_each
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig
from keras_vit.data import flexible_patches, from_arrays, native_batch, native_pipeline, train_pipeline
from keras_vit.data.preprocessing import native_grid

NATIVE = Preprocessing(size=16).native(4, 20)


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(0)
    return from_arrays(rng.integers(0, 256, (12, 20, 31, 3)).astype("uint8"), np.arange(12) % 5)


def test_a_batch_is_that_of_numpy():
    rng = np.random.default_rng(1)
    images = [rng.normal(size=(*size, 2)).astype("float32") for size in ((8, 12), (4, 18))]
    batch = native_batch(images, (4, 6), images_per_sequence=2, length=9)
    assert batch["patches"].shape == (1, 9, 48) and batch["coordinates"].dtype == np.int32
    expected, places = [], []
    for number, image in enumerate(images):
        rows, columns = image.shape[0] // 4, image.shape[1] // 6
        for row in range(rows):
            for column in range(columns):
                expected.append(image[row * 4 : row * 4 + 4, column * 6 : column * 6 + 6].ravel())
                places.append((row, column, rows, columns, number))
    np.testing.assert_array_equal(batch["patches"][0, :7], expected)
    np.testing.assert_array_equal(batch["coordinates"][0, :7], places)
    np.testing.assert_array_equal(batch["patches"][0, 7:], 0)
    np.testing.assert_array_equal(batch["coordinates"][0, 7:], [(0, 0, 1, 1, -1)] * 2)


@for_each(
    ("images", "arguments", "message"),
    [
        ([], {}, "a multiple of images_per_sequence=1, not 0; got 0"),
        ([(8, 8, 3)], {"images_per_sequence": 2}, "a multiple of images_per_sequence=2, not 0; got 1"),
        ([(8, 8, 3), (8, 10, 3)], {}, r"images\[1\] must be divisible by patch_size; got .*\(8, 10\)"),
        ([(8, 8, 3), (8, 8)], {}, r"images\[1\] must be .*; got \(8, 8\)"),
        ([(8, 8, 3), (8, 8, 1)], {}, r"images\[1\] must be .*; got \(8, 8, 1\)"),
        ([(8, 0, 3)], {}, r"\(height, width, 3\), no side 0; got \(8, 0, 3\)"),
        ([(8, 8, 3)], {"length": 3}, "length must be at least 4, the patches of the longest sequence; got 3"),
    ],
)
def test_images_that_make_no_batch_are_refused(images, arguments, message):
    with pytest.raises(ValueError, match=message):
        native_batch([np.zeros(shape) for shape in images], 4, **arguments)


def test_the_grid_is_the_largest_that_the_definition_allows():
    rng = np.random.default_rng(2)
    for _ in range(60):
        height, width = (int(side) for side in rng.integers(1, 900, 2))
        most, patch = int(rng.integers(1, 300)), (16, int(rng.choice([8, 16])))
        low, high = 1e-7, 1e4  # the scale, by bisection
        for _ in range(100):
            scale = (low + high) / 2
            grid = math.ceil(scale * height / patch[0]), math.ceil(scale * width / patch[1])
            low, high = (scale, high) if grid[0] * grid[1] <= most else (low, scale)
        expected = math.ceil(low * height / patch[0]), math.ceil(low * width / patch[1])
        preprocessing = Preprocessing(patch_size=patch, max_tokens=most)
        found = native_grid(tf.constant(height, tf.int64), tf.constant(width, tf.int64), preprocessing)
        assert tuple(map(int, found)) == expected, (height, width, most, patch)


@pytest.mark.parametrize(("interpolation", "resample"), [("bicubic", "BICUBIC"), ("bilinear_antialias", "BILINEAR")])
def test_images_are_resized_as_pillow_does(interpolation, resample):
    pixels = np.random.default_rng(3).integers(0, 256, (50, 90, 3)).astype("uint8")
    batch = keras_vit.preprocess(pixels, NATIVE.replace(interpolation=interpolation))
    _, _, rows, columns, _ = batch["coordinates"][0, 0]
    assert (rows, columns) == (3, 6)
    resized = PIL.Image.fromarray(pixels).resize((24, 12), PIL.Image.Resampling[resample])
    expected = native_batch([np.asarray(resized, "float32") / 127.5 - 1], 4, length=20)["patches"]
    difference = np.abs(batch["patches"] - expected)
    assert difference.max() <= 1 / 127.5 + 1e-6 and (difference > 1e-6).mean() < 0.01


@pytest.mark.slow
def test_each_image_is_evaluated_once_in_its_order(source):
    labels, lengths = [], []
    for inputs, part in native_pipeline(source, NATIVE, 5, buckets=(12, 16, 20)):
        labels += part.numpy().tolist()
        lengths.append(inputs["patches"].shape[1])
    assert labels == (np.arange(12) % 5).tolist()
    assert lengths == [20] * 3  # 4 x 5 patches each


def test_training_batches_depend_on_their_number_alone(source):
    arguments = {"training": True, "drop_rate": 0.4, "images_per_sequence": 2, "seed": 3, "buckets": (24, 28, 40)}
    whole = list(native_pipeline(source, NATIVE, 4, **arguments).take(5))
    resumed = native_pipeline(source, NATIVE, 4, start_step=2, **arguments).take(3)
    for one, other in zip(whole[2:], resumed, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)
    inputs, labels = whole[0]
    assert inputs["patches"].shape[:2] == (2, 24) and labels.shape == (2, 2)  # 12 of 20 patches of each image
    images = inputs["coordinates"].numpy()[..., 4]
    assert [(images == number).sum(1).tolist() for number in (-1, 0, 1)] == [[0, 0], [12, 12], [12, 12]]


@pytest.mark.slow
def test_packed_images_keep_their_labels_and_patches():
    """The label is the brightness; the sizes differ, and long images share a sequence with short ones."""
    images = [np.full((4 * side, 8, 3), 20 * side, "uint8") for side in (1, 5, 2, 4, 3, 6)]

    def lookup(position):
        pixels = tf.switch_case(tf.cast(position, tf.int32), [lambda one=one: tf.constant(one) for one in images])
        return {"image": tf.ensure_shape(pixels, (None, None, 3)), "label": position}

    source = from_arrays(np.zeros((6, 4, 4, 3), "uint8"), np.arange(6))
    source = keras_vit.data.ImageSource(
        tf.data.Dataset.range(6).map(lookup), source.class_names, 6, lookup=lookup, describe=str
    )
    preprocessing = Preprocessing(size=16, interpolation="nearest").native(4, 12)
    data = native_pipeline(source, preprocessing, 6, training=True, images_per_sequence=2, shuffle=False)
    inputs, labels = (tf.nest.map_structure(np.asarray, part) for part in next(iter(data)))
    assert sorted(labels.ravel()) == list(range(6))
    for sequence in range(3):
        places, patches = inputs["coordinates"][sequence], inputs["patches"][sequence]
        for number in range(2):
            pixels = (patches[places[:, 4] == number] + 1) * 127.5
            np.testing.assert_allclose(pixels, images[labels[sequence, number]].flat[0], atol=1e-3)


@for_each(
    ("arguments", "message"),
    [
        ({"buckets": (30, 20)}, "buckets must ascend"),
        ({"buckets": (8, 16)}, r"to images_per_sequence \* max_tokens = 20 or more; got \(8, 16\)"),
        ({"buckets": (0, 20)}, "buckets"),
        ({"images_per_sequence": 2}, "need training=True"),
        ({"drop_rate": 0.5}, "need training=True"),
        ({"drop_rate": 1.0, "training": True}, "drop_rate"),
        ({"images_per_sequence": 3, "training": True}, "images_per_sequence=3 must divide the images of each batch"),
        ({"training": True, "augment": ("inception_crop",)}, "augment must not crop"),
        ({"training": True, "mix": ("mixup(0.2)",)}, "mix must be empty"),
        ({"dtype": "uint8"}, "dtype must be one of 'float32'"),
        ({"preprocessing": Preprocessing(size=16)}, "preprocessing must have patch_size and max_tokens"),
    ],
)
def test_arguments_are_checked(source, arguments, message):
    preprocessing = arguments.pop("preprocessing", NATIVE)
    with pytest.raises(ValueError, match=message):
        native_pipeline(source, preprocessing, 4, **arguments)


def test_training_evaluation_and_prediction(source):
    config = ViTConfig(
        name="tiny", image_size=16, classes=5, patch_size=4, hidden_dim=16, num_layers=1, num_heads=2, mlp_dim=16
    )
    model = keras_vit.resize(VisionTransformer(config), "native", max_tokens=20)
    data = native_pipeline(source, model.preprocessing, 4, training=True, augment=("flip",))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)  # models/test_native.py has the compiled model
    model.fit(data, steps_per_epoch=data.steps_per_epoch, shuffle=False, verbose=0)
    scores = model.predict(native_pipeline(source, model.preprocessing, 5), verbose=0)
    result = keras_vit.evaluate(model, source)
    assert result.top[1] == pytest.approx((scores.argmax(1) == np.arange(12) % 5).mean())
    images = [np.zeros((9, 40, 3), "uint8"), np.full((30, 8, 3), 200, "uint8")]
    found = keras_vit.predict(model, images, top=5)
    one_by_one = [keras_vit.predict(model, image, top=5)[0] for image in images]
    for together, alone in zip(found, one_by_one, strict=True):
        assert dict(together) == pytest.approx(dict(alone), abs=1e-5)


SIZES = (3, 4, 6, 8, 12)


@pytest.fixture(scope="module")
def batches():
    images = np.random.default_rng(4).normal(size=(2, 24, 48, 3)).astype("float32")
    return tf.data.Dataset.from_tensors((images, np.arange(2))).repeat(40)


@pytest.mark.parametrize("size", slow_after(2, (3, 8, 4, 6, 12)))
def test_flexible_patches_give_the_tokens_of_the_resized_kernel(batches, size):
    config = ViTConfig(
        name="tiny", image_size=(24, 48), classes=5, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8
    )
    model = VisionTransformer(config)
    model.get_layer("head").kernel.assign(np.random.default_rng(5).normal(size=(8, 5)))
    trained = keras_vit.resize(model, "any")
    flexible, _ = next(iter(flexible_patches(batches, (size,), 4)))
    assert flexible.shape == (2, 24 // size * 4, 48 // size * 4, 3)
    expected = model.with_patch_size(size)(next(iter(batches))[0])
    np.testing.assert_allclose(trained(flexible), expected, atol=1e-5)


def test_patch_sizes_are_drawn_by_the_number_of_the_batch(batches):
    def shapes(**arguments):
        return [images.shape[1] for images, _ in flexible_patches(batches, SIZES, 4, **arguments)]

    drawn = shapes(seed=1)
    assert set(drawn) == {24 // size * 4 for size in SIZES}
    assert shapes(seed=1, start_step=7)[:33] == drawn[7:]
    assert shapes(seed=2) != drawn
    kept = next(iter(flexible_patches(batches, SIZES, 4, seed=1, keep_images=True)))[0]
    np.testing.assert_array_equal(kept["teacher_images"], next(iter(batches))[0])
    assert kept["images"].shape[1] == drawn[0]


def test_patch_sizes_must_divide_the_images(batches):
    with pytest.raises(ValueError, match=r"the sides of the images must be divisible by patch_sizes.*\(5, 5\)"):
        flexible_patches(batches, (4, 5), 4)


@for_each(
    ("dataset", "sizes"),
    [
        (tf.data.Dataset.from_tensors((tf.zeros((2, 8, 8, 3), tf.uint8), [0, 1])), (4,)),
        (tf.data.Dataset.from_tensors((tf.zeros((2, 8, 8, 3)), [0, 1])), ()),
        (tf.data.Dataset.from_tensors(tf.zeros((2, 8, 8, 3))), (4,)),
        (tf.data.Dataset.from_tensors(({"patches": tf.zeros((2, 8, 8, 3))}, [0, 1])), (4,)),
    ],
)
def test_batches_without_images_of_one_size_are_refused(dataset, sizes):
    with pytest.raises(ValueError, match="dataset must have batches|patch_sizes must"):
        flexible_patches(dataset, sizes, 4)


@pytest.mark.slow
def test_shards_drop_the_patches_of_the_whole_batch(source):
    arguments = {"training": True, "drop_rate": 0.4, "seed": 3}
    whole, _ = next(iter(native_pipeline(source, NATIVE, 4, **arguments)))
    parts = [next(iter(native_pipeline(source, NATIVE, 4, shard=(index, 2), **arguments)))[0] for index in range(2)]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_the_steps_of_training_batches_are_kept(source):
    data = train_pipeline(source, Preprocessing(size=24), 4)
    assert flexible_patches(data, (4, 8), 4).steps_per_epoch == data.steps_per_epoch == 3
