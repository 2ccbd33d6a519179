"""Images of a student for its teacher, against Pillow's resize of float images."""

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.models.distillation import convert
from keras_vit.models.encoders import images_of

HALF = keras_vit.Preprocessing(size=(12, 10))
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def resized(images, size):
    """By Pillow, channel by channel, in floats."""
    filtered = PIL.Image.Resampling.BILINEAR
    return np.stack(
        [
            np.stack([np.asarray(PIL.Image.fromarray(x[..., c]).resize(size[::-1], filtered)) for c in range(3)], -1)
            for x in images
        ]
    )


@pytest.mark.parametrize("size", [(12, 10), (30, 21), (5, 7), (5, 21)])
def test_images_are_as_the_teacher_standardises_them(size):
    levels = np.random.default_rng(0).uniform(size=(2, 12, 10, 3)).astype("float32")
    target = keras_vit.Preprocessing(size=size, **IMAGENET)
    found = keras.ops.convert_to_numpy(convert((levels - 0.5) / 0.5, HALF, target))
    expected = (resized(levels, size) - IMAGENET["mean"]) / IMAGENET["std"]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_images_of_the_same_kind_are_left_alone():
    images = np.zeros((1, 12, 10, 3), "float32")
    assert convert(images, HALF, keras_vit.Preprocessing(size=(24, 20), crop=(12, 10))) is images


def test_whose_images_are_known(make_model):
    model = make_model()
    inputs = keras.Input((16, 16, 3))
    head = keras.layers.Dense(3)
    rescaled = keras.Model(inputs, head(model(keras.layers.Rescaling(2.0)(inputs))))
    assert images_of(model) is model.preprocessing
    assert images_of(keras_vit.Model(inputs, head(model(inputs)))) is model.preprocessing
    assert images_of(keras.Sequential([model, head])) is model.preprocessing
    assert images_of(keras.Model(inputs, rescaled(inputs))) is None
    assert images_of(keras.Sequential([keras.layers.Rescaling(2.0), model])) is None
    assert images_of(keras.Sequential([head])) is None
