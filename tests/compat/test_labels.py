"""Labels beyond the classes are told of in one sentence, before a step uses them, on every backend."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import FAMILIES
from slow_rows import slow_after

import keras_vit
from keras_vit.compat.labels import check_labels, label_rules, labels_in_words
from keras_vit.compat.saved_objects import CrossEntropy

Sparse = keras.losses.SparseCategoricalCrossentropy
LOSS = Sparse(from_logits=True)
IMAGES = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
LABELS = np.arange(12) % 3 + 1  # of three classes, counted from 1
WANTED = "labels must be from 0 to 2, as the model has 3 classes; a batch has "
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def small(loss=LOSS, outputs=1, **arguments):
    inputs = keras.Input((4,))
    heads = [keras.layers.Dense(3, name=f"head_{n}")(inputs) for n in range(outputs)]
    model = keras_vit.Model(inputs, heads if outputs > 1 else heads[0])
    model.compile("sgd", loss, **arguments)
    return model


OPTIONS = [
    {"jit_compile": False, "steps_per_execution": 3, "loss": Sparse(from_logits=True, ignore_class=255)},
    {"jit_compile": True, "microbatches": 2},
    {"run_eagerly": True},
]


@pytest.mark.parametrize("options", slow_after(2, OPTIONS) if ON_TENSORFLOW else [{}, {"microbatches": 2}])
def test_no_step_uses_them(options):
    model = small(**options)
    before = model.get_weights()
    weights = np.array([1.0] * 11 + [0.5], "float32")
    for method, labels, found in (("fit", LABELS, 3), ("evaluate", LABELS - 2, -1)):
        data = tf.data.Dataset.from_tensor_slices((IMAGES, labels, weights))
        more = {"shuffle": False} if method == "fit" else {}
        with pytest.raises(ValueError, match=f"^{WANTED}{found}$"):
            getattr(model, method)(data.batch(4), verbose=0, **more)
    for method in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match=f"^{WANTED}3$"):
            method(IMAGES, LABELS)
    with pytest.raises(ValueError, match=f"^{WANTED}3$"):
        model.fit(IMAGES, np.where(np.arange(12) == 11, 3, 0), batch_size=4, verbose=0)  # no step before that label
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    labels = np.where(LABELS == 3, 255 if "loss" in options else 0, LABELS)
    plain = keras.Model(model.inputs, model.outputs)
    plain.compile("sgd", model.loss, run_eagerly=ON_TENSORFLOW)
    expected = plain.evaluate(IMAGES, labels, sample_weight=weights, batch_size=4, verbose=0)
    found = model.evaluate(IMAGES, labels, sample_weight=weights, batch_size=4, verbose=0)
    assert found == pytest.approx(expected, rel=1e-6)
    model.fit(IMAGES, labels, batch_size=4, verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    ("loss", "outputs", "labels"),
    [
        ("sparse_categorical_crossentropy", 1, LABELS),
        (functools.partial(keras.losses.sparse_categorical_crossentropy, from_logits=True), 1, LABELS),
        (functools.partial(keras.losses.sparse_categorical_crossentropy, ignore_class=255), 1, np.array([255, 3])),
        (CrossEntropy(), 1, LABELS),
        (CrossEntropy("sigmoid"), 1, LABELS[:, None]),
        (LOSS, 2, [LABELS - 1, LABELS]),
        ([LOSS, "mse"], 2, [LABELS, LABELS]),
        ({"head_0": "mse", "head_1": LOSS}, 2, {"head_0": LABELS, "head_1": LABELS}),
    ],
)
def test_losses_of_indices(loss, outputs, labels):
    with pytest.raises(ValueError, match=f"^{WANTED}3$"):
        check_labels(label_rules(small(loss, outputs)), labels)


@pytest.mark.parametrize(
    ("loss", "outputs", "labels"),
    [
        ("mse", 1, LABELS),
        (functools.partial(keras.losses.sparse_categorical_crossentropy, ignore_class=255), 1, np.array([255, 2])),
        (lambda y, z: z, 1, LABELS),
        (None, 1, LABELS),
        ("categorical_crossentropy", 1, 7 * np.ones((12, 3))),
        (CrossEntropy(), 1, 7 * np.ones((12, 3))),  # targets
        (LOSS, 1, [1, 2, 7]),  # which Keras refuses
        (LOSS, 1, None),
        ([LOSS, "mse"], 2, [LABELS - 1, LABELS]),
    ],
)
def test_other_labels_pass(loss, outputs, labels):
    check_labels(label_rules(small(loss, outputs)), labels)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="a step of Keras on TensorFlow")
def test_an_own_step_gets_pairs():
    class Own(keras_vit.Model):
        def train_step(self, data):
            inputs, _ = data
            return {"rows": tf.shape(inputs)[0]}

    model = small()
    own = Own(model.inputs, model.outputs)
    own.compile("sgd", LOSS)
    assert own.fit(IMAGES, LABELS - 1, batch_size=12, verbose=0).history == {"rows": [12]}


def test_models_of_the_package():
    model = FAMILIES["plain"].build()
    model.compile("sgd", LOSS, run_eagerly=ON_TENSORFLOW)
    inputs, classes = np.zeros((2, *model.input_shape[1:]), "float32"), model.config.classes
    with pytest.raises(
        ValueError, match=f"^labels must be from 0 to {classes - 1}, as the model has {classes} classes"
    ):
        model.fit(inputs, np.array([0, classes]), verbose=0)


def test_a_single_class():
    with pytest.raises(ValueError, match="labels must be 0, the only class; a batch has 1"), labels_in_words():
        raise RuntimeError("Received a label value of 1 which is outside the valid range of [0, 1).  Label values: 0 1")


def test_other_errors_pass():
    error = RuntimeError("another")
    with pytest.raises(RuntimeError) as caught, labels_in_words():
        raise error
    assert caught.value is error


def test_a_label_that_is_no_number():
    with pytest.raises(ValueError, match=f"^{WANTED}nan$"):
        check_labels(label_rules(small()), np.array([0, np.nan]))
