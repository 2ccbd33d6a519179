"""keras-cv's layers by name, inside tf.data."""

import sys

import keras
import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf
from faults import for_each
from slow_rows import slow_after

from keras_vit.data.augment import parse_augment

pytest.importorskip("keras_cv", reason="needs keras-cv")

PHOTO = sklearn.datasets.load_sample_image("china.jpg")[150:198, 200:264].astype(np.float32)
IMAGES = np.stack([PHOTO, PHOTO[::-1], PHOTO[:, ::-1], PHOTO / 2])


def run(text, images=IMAGES, rounds=4):
    (operation,) = parse_augment((text,))
    assert operation.kind == "image"
    dataset = tf.data.Dataset.from_tensor_slices(images).repeat(rounds).map(lambda x: operation(x, tf.constant((1, 2))))
    assert dataset.element_spec == tf.TensorSpec(images.shape[1:], tf.float32)
    results = np.stack(list(dataset.as_numpy_iterator())).reshape(rounds, *images.shape)
    assert 0 <= results.min() <= results.max() <= 255
    return results


@pytest.mark.parametrize(
    "text",
    slow_after(
        1,
        [
            "keras_cv.RandomCutout(0.5, 0.5)",
            "keras_cv.RandAugment(augmentations_per_image=1)",
            "keras_cv.RandomColorJitter((0, 255), 0.2, 0.2, (0.4, 0.6), (0.0, 0.1))",
            "keras_cv.RandomFlip('horizontal')",
        ],
    ),
)
def test_layers_change_images_inside_a_data_set(text):
    results = run(text, rounds=20)  # the layers draw without a seed: 4 rounds were too few for flips
    assert len(np.unique(results.reshape(80, -1), axis=0)) > 4


def test_the_layer_is_keras_cvs():
    np.testing.assert_array_equal(run("keras_cv.Grayscale(3)")[0], run("keras_cv.Grayscale(output_channels=3)")[0])
    grey = run("keras_cv.Grayscale(3)")[0]
    np.testing.assert_allclose(grey[..., 0], IMAGES @ np.float32((0.2989, 0.587, 0.114)), atol=1e-3)
    # value_range is (0, 255) where it is left out: 128 of these values is half of the range.
    solarized = run("keras_cv.Solarization(threshold_factor=(128, 128))")[0]
    whole = np.round(IMAGES)
    np.testing.assert_allclose(solarized, np.where(whole > 128, 255 - whole, whole), atol=1.01)


def test_layers_keep_float32_under_another_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    levels = np.full((1, 8, 8, 3), 201.5, np.float32)  # bfloat16 has 201 and 202
    results = run("keras_cv.RandomFlip('horizontal')", levels)
    assert (results == 201.5).all()
    assert keras.config.dtype_policy().name == "mixed_bfloat16"


@for_each(
    ("text", "message"),
    [
        ("keras_cv.RandomCutOut(0.2, 0.2)", r"has no layer 'RandomCutOut'.*did you mean 'RandomCutout'"),
        ("keras_cv.xyzzy", "has no layer 'xyzzy' that changes images; there are AugMix, AutoContrast"),
        ("keras_cv.MixUp()", r"keras_cv.MixUp changes labels too; use mix=\('mixup\(0.2\)',\) or"),
        ("keras_cv.CutMix", "CutMix changes labels too"),
        ("keras_cv.BaseImageAugmentationLayer()", "has no layer 'BaseImageAugmentationLayer'"),
        ("keras_cv.DropPath(0.1)", "has no layer 'DropPath'"),
        ("keras_cv.RandomCutout(0.2)", "RandomCutout got wrong arguments: .*width_factor"),
        ("keras_cv.RandomCutout(0.2, 0.2, fill_mode='wood')", "RandomCutout got wrong arguments: .*fill_mode"),
        ("keras_cv.AutoContrast((0, 1))", r"value_range must be \(0, 255\) here; got value_range=\(0, 1\)"),
        ("keras_cv.RandomContrast(0.3, 0.2)", r"value_range must be \(0, 255\) here; got value_range=0.3"),
        ("keras_cv.layers.RandomFlip()", "names or calls with literal arguments"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ValueError, match=message):
        parse_augment((text,))


def test_without_keras_cv(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_cv", None)
    with pytest.raises(ImportError, match=r"need keras-cv: pip install keras-cv$"):
        parse_augment(("keras_cv.RandomCutout(0.2, 0.2)",))
