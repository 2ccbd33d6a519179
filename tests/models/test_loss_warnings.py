"""Losses that do not go with the head are warned of, and no others."""

import functools
import warnings

import keras
import pytest
from families import FAMILIES

import keras_vit
from keras_vit.compat.saved_objects import CrossEntropy
from keras_vit.models.training_warnings import warn_of_loss

LOSSES = keras.losses
CONFIG = FAMILIES["plain"].build().config


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        LOSSES.CategoricalCrossentropy(),
        LOSSES.BinaryCrossentropy(),
        LOSSES.binary_crossentropy,
        {"head": None, "head_distillation": LOSSES.SparseCategoricalCrossentropy()},
    ],
)
def test_probabilities_are_warned_of(loss):
    with pytest.warns(UserWarning, match="takes probabilities, and this model ends in logits"):
        warn_of_loss(loss, CONFIG)


@pytest.mark.parametrize(
    "loss",
    [None, "mse", LOSSES.SparseCategoricalCrossentropy(from_logits=True), LOSSES.MeanSquaredError(), lambda y, z: z],
)
def test_other_losses_are_not(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_loss(loss, CONFIG)


@pytest.mark.parametrize(
    "loss",
    [
        "categorical_crossentropy",
        LOSSES.SparseCategoricalCrossentropy(from_logits=True),
        CrossEntropy(from_logits=True),
    ],
)
@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_classes_of_a_single_logit(loss, activation):
    config = CONFIG.replace(classes=1, classifier_activation=activation)
    with pytest.warns(UserWarning, match="compares classes, and this model has classes=1: build it with classes=2"):
        warn_of_loss(loss, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_loss(LOSSES.BinaryCrossentropy(from_logits=True), config)
        warn_of_loss(loss, config.replace(include_top=False))


@pytest.mark.parametrize("name", ["plain", "Swin", "BiT"])
def test_models_look_at_their_head(name):
    loss = "sparse_categorical_crossentropy"
    with pytest.warns(UserWarning, match="takes probabilities"):
        FAMILIES[name].build().compile("sgd", loss)
    for arguments in ({"classifier_activation": "softmax"}, {"include_top": False}):
        FAMILIES[name].build(**arguments).compile("sgd", loss)


def test_logits_are_not_expected_of_a_softmax():
    """Keras on TensorFlow warns and uses the logits; on JAX the softmax would be applied twice."""
    softmax, loss = FAMILIES["plain"].build(classifier_activation="softmax"), LOSSES.SparseCategoricalCrossentropy(True)
    headed = keras_vit.Model(softmax.inputs, keras.layers.Softmax(name="again")(softmax.outputs[0]))
    student = FAMILIES["plain"].build(classifier_activation="softmax")
    refused = "loss and metrics must have from_logits=False, as .* ends in a softmax; got .* with from_logits=True"
    for model in (softmax, headed, keras_vit.Distiller(student, FAMILIES["plain"].build())):
        for wrong in (loss, functools.partial(LOSSES.sparse_categorical_crossentropy, from_logits=True)):
            with pytest.raises(ValueError, match=refused):
                model.compile("sgd", wrong)
        assert not model.compiled
        model.compile("sgd", LOSSES.SparseCategoricalCrossentropy())
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match=refused):
        softmax.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy", metric])
    with pytest.raises(ValueError, match=refused):
        softmax.compile("sgd", "sparse_categorical_crossentropy", None, [metric])
    with pytest.raises(ValueError, match="ends in a sigmoid"):
        FAMILIES["plain"].build(classifier_activation="sigmoid").compile("sgd", CrossEntropy("sigmoid"))
    FAMILIES["plain"].build().compile("sgd", loss, metrics=[metric])


def test_a_compiled_model_is_cloned_by_keras():
    model = FAMILIES["plain"].build()
    model.compile("sgd", LOSSES.SparseCategoricalCrossentropy(from_logits=True))
    clone = keras.models.clone_model(model)
    assert clone.compiled and clone.loss.from_logits and "microbatches" not in model.get_compile_config()
    model.compile("sgd", "mse", microbatches=2)
    assert model.get_compile_config()["microbatches"] == 2
