"""The first images that fit, evaluate and predict get are looked at, and no batch is read twice or lost."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from slow_rows import slow_after

import keras_vit
from keras_vit import Preprocessing, VisionTransformer, ViTConfig

pytestmark = pytest.mark.usefixtures("eagerly")

CONFIG = ViTConfig(
    name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3
)
RNG = np.random.default_rng(0)
PREPARED = RNG.uniform(-1, 1, (6, 8, 8, 3)).astype("float32")
PIXELS = RNG.uniform(0, 255, (6, 8, 8, 3)).astype("float32")
LABELS = np.arange(6) % 3
WRONG = r"{} of toy got images with values from 0.* to 25.*, where the model takes -1 to 1: prepare them as keras_vit"


def model_of(include=False, **changes):
    model = VisionTransformer(CONFIG.replace(include_preprocessing=include, **changes))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def generator(images, labels=LABELS):
    for start in range(0, len(images), 2):
        yield images[start : start + 2], labels[start : start + 2]


def dataset(images):
    return tf.data.Dataset.from_tensor_slices((images, LABELS)).batch(2)


class Items(keras.utils.PyDataset):
    def __init__(self, images):
        super().__init__()
        self.images = images

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.images[2 * index : 2 * index + 2], LABELS[2 * index : 2 * index + 2]


KINDS = {
    "arrays": lambda images: {"x": images, "y": LABELS, "batch_size": 2},
    "tensors": lambda images: {"x": keras.ops.convert_to_tensor(images), "y": LABELS, "batch_size": 2},
    "dataset": lambda images: {"x": dataset(images)},
    "generator": lambda images: {"x": generator(images)},
    "items": lambda images: {"x": Items(images)},
}
STEPS = {"fit": {"steps_per_epoch": 3, "shuffle": False}, "evaluate": {"steps": 3}}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", slow_after(1, KINDS))
@pytest.mark.parametrize("method", slow_after(1, ["fit", "evaluate"]))
def test_pixel_values_of_floats_are_warned_of(method, kind):
    model = model_of()
    with pytest.warns(UserWarning, match=WRONG.format(method) + ".*include_preprocessing=True"):
        getattr(model, method)(**KINDS[kind](PIXELS), **STEPS[method], verbose=0)
    getattr(model, method)(**KINDS[kind](PREPARED), **STEPS[method], verbose=0)  # a warning is an error


def test_predict_and_validation_data_are_looked_at_too():
    model = model_of()
    for images in (PIXELS, tf.data.Dataset.from_tensor_slices(PIXELS).batch(2)):
        with pytest.warns(UserWarning, match=WRONG.format("predict")):
            model.predict(images, verbose=0)
    for validation in ((PIXELS, LABELS), dataset(PIXELS)):
        with pytest.warns(UserWarning, match=WRONG.format("fit")) as found:
            model.fit(PREPARED, LABELS, validation_data=validation, epochs=3, verbose=0)
        assert len([warning for warning in found if "got images" in str(warning.message)]) == 1


def test_a_model_around_another_is_looked_at():
    encoder = VisionTransformer(CONFIG.replace(include_top=False), name="encoder")
    model = keras_vit.Model(encoder.input, keras.layers.Dense(2)(encoder(encoder.input)), name="toy")
    with pytest.warns(UserWarning, match=WRONG.format("predict")):
        model.predict(PIXELS, verbose=0)
    rescaled = keras.layers.Rescaling(1 / 127.5, -1.0)(inputs := keras.Input((8, 8, 3)))
    keras_vit.Model(inputs, encoder(rescaled)).predict(PIXELS, verbose=0)


def test_prepared_images_for_a_model_of_pixels_are_warned_of():
    model = model_of(include=True)
    for images, low in ((PREPARED, "-0.9"), (PIXELS / 255, "")):
        with pytest.warns(
            UserWarning,
            match=f"predict of toy got images with values from {low}.* to .*, where the mod.*"
            "takes 0 to 255: it was built with include_preprocessing=True",
        ):
            model.predict(images, verbose=0)
    model.predict(PIXELS, verbose=0)
    model.predict(np.zeros((2, 8, 8, 3), "float32"), verbose=0)  # black


def test_no_batch_is_read_twice_or_lost():
    given = []

    def counted():
        for batch in generator(PREPARED):
            given.append(batch)
            yield batch

    model, data = model_of(), counted()
    model.fit(data, steps_per_epoch=1, shuffle=False, verbose=0)
    model.evaluate(data, steps=1, verbose=0)  # goes on with the same generator
    assert len(given) <= 3


class Counted(Items):
    """Without an end if `batches` is None; notes what is read."""

    def __init__(self, images, batches=3):
        super().__init__(images)
        self.batches, self.read = batches, []

    @property
    def num_batches(self):
        return self.batches

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index % 3)


def test_a_py_dataset_is_read_as_often_as_by_keras():
    for batches in (3, None):
        model, data, expected = model_of(), Counted(PREPARED, batches), Counted(PREPARED, batches)
        plain = keras.Model(model.inputs, model.outputs)
        plain.compile("sgd", model.loss)
        for one, given in ((model, data), (plain, expected)):
            one.fit(given, steps_per_epoch=2, shuffle=False, verbose=0)
            one.evaluate(given, steps=2, verbose=0)
            one.predict(given, steps=2, verbose=0)
        assert data.read == expected.read
    for method, steps in (("fit", "steps_per_epoch"), ("evaluate", "steps"), ("predict", "steps")):
        with pytest.raises(ValueError, match=f"{steps} must be given to {method}, as x is infinite"):
            getattr(model, method)(data, verbose=0)


def test_data_reach_keras_as_they_are_and_are_looked_at_once(monkeypatch):
    reached = []
    for method in ("fit", "evaluate", "predict"):
        own = getattr(keras.Model, method)
        noted = lambda self, x, *rest, own=own, **more: (reached.append(x), own(self, x, *rest, **more))[1]  # noqa: E731
        monkeypatch.setattr(keras.Model, method, functools.wraps(own)(noted))
    model, data, items = model_of(), dataset(PIXELS), Counted(PIXELS)
    for given in (data, items):
        with pytest.warns(UserWarning, match=WRONG.format("fit")):
            model.fit(given, shuffle=False, verbose=0)
        model.evaluate(given, verbose=0)  # a warning is an error
        model.predict(given, verbose=0)
    assert reached == [data] * 3 + [items] * 3
    with pytest.warns(UserWarning, match=WRONG.format("predict")):  # another model
        model_of().predict(data, verbose=0)


@pytest.mark.usefixtures("compiled")
def test_several_steps_and_replicas_are_looked_at():
    name = "mirrored" if keras.backend.backend() == "tensorflow" else "data_parallel"
    with keras_vit.distribution(name, devices=["CPU:0"] if name == "mirrored" else None):
        model = model_of()
        model.compile("sgd", model.loss, steps_per_execution=2)
        with pytest.warns(UserWarning, match=WRONG.format("fit")):
            model.fit(dataset(PIXELS).repeat(2), shuffle=False, verbose=0)


def test_other_functions_that_take_prepared_images_look_at_them():
    model = VisionTransformer(CONFIG, labels=list("abc"))
    model.get_layer("head").kernel.assign(RNG.normal(size=(8, 3)))
    with pytest.warns(UserWarning, match=WRONG.format("evaluate")):
        keras_vit.evaluate(model, dataset(PIXELS))
    with pytest.warns(UserWarning, match=WRONG.format("predict_prepared")):
        keras_vit.evaluation.predict_prepared(model, PIXELS)


@pytest.mark.usefixtures("compiled")
def test_what_is_not_known_or_not_certain_passes():
    model = model_of()
    with warnings.catch_warnings(action="error"):
        model.predict(3 * PREPARED, verbose=0)  # a strong augmentation
        VisionTransformer(CONFIG, preprocessing=Preprocessing(size=8, std=(0.001,) * 3)).predict(PIXELS, verbose=0)
        VisionTransformer(CONFIG.replace(channels=4)).predict(np.tile(PREPARED, 2)[..., :4], verbose=0)
        keras_vit.Model(inputs := keras.Input((8, 8, 3)), keras.layers.Flatten()(inputs)).predict(PIXELS, verbose=0)
