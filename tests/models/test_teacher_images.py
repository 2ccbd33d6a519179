"""Images of a student for its teacher, against Pillow's resize of float images."""

import keras
import numpy as np
import PIL.Image
import pytest

import keras_vit
from keras_vit.models.distillation import convert
from keras_vit.models.encoders import preprocessing_of

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
    assert preprocessing_of(model) is model.preprocessing
    assert preprocessing_of(keras_vit.Model(inputs, head(model(inputs)))) is model.preprocessing
    assert preprocessing_of(keras.Sequential([model, head])) is model.preprocessing
    assert preprocessing_of(keras.Model(inputs, rescaled(inputs))) is None
    assert preprocessing_of(keras.Sequential([keras.layers.Rescaling(2.0), model])) is None
    assert preprocessing_of(keras.Sequential([head])) is None


@pytest.mark.slow
def test_a_teacher_may_get_images_of_its_own(make_model):
    """FlexiViT: the student has resized patches, the teacher the whole image; one step against the formula."""
    rng = np.random.default_rng(1)
    flexible, whole = (rng.normal(size=(4, *size, 3)).astype("float32") for size in ((8, 12), (24, 20)))
    teacher = make_model(preprocessing=keras_vit.Preprocessing(size=16, **IMAGENET))
    student = keras_vit.resize(make_model(num_layers=1), "any")
    taught = keras.ops.convert_to_numpy(teacher(convert(whole, student.preprocessing, teacher.preprocessing)))
    told = keras.ops.convert_to_numpy(student(flexible))
    log_taught, log_told = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (taught, told))
    expected = (np.exp(log_taught) * (log_taught - log_told)).mean()
    distiller = keras_vit.Distiller(student, teacher, mode="soft", alpha=1.0)
    distiller.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = student.get_weights()
    history = distiller.fit({"images": flexible, "teacher_images": whole}, np.arange(4), batch_size=4, verbose=0)
    assert history.history["distillation_loss"][0] == pytest.approx(expected, rel=1e-4)
    assert history.history["loss"][0] == pytest.approx(expected, rel=1e-4)
    assert any((one != other).any() for one, other in zip(before, student.get_weights(), strict=True))
    np.testing.assert_allclose(distiller.predict(flexible, verbose=0), student.predict(flexible, verbose=0), atol=1e-6)
