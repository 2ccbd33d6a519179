"""Losses that do not go with the head are warned of, and no others."""

import warnings

import keras
import pytest
from families import FAMILIES

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


@pytest.mark.parametrize("loss", ["categorical_crossentropy", LOSSES.SparseCategoricalCrossentropy(from_logits=True)])
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
