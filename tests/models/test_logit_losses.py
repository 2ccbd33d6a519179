"""Losses that take logits for probabilities are warned of, and no others."""

import warnings

import keras
import pytest
from families import FAMILIES

from keras_vit.models.logit_losses import warn_of_probabilities

LOSSES = keras.losses


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
        warn_of_probabilities(loss)


@pytest.mark.parametrize(
    "loss",
    [None, "mse", LOSSES.SparseCategoricalCrossentropy(from_logits=True), LOSSES.MeanSquaredError(), lambda y, z: z],
)
def test_other_losses_are_not(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_probabilities(loss)


@pytest.mark.parametrize("name", ["plain", "Swin", "BiT"])
def test_models_look_at_their_head(name):
    loss = "sparse_categorical_crossentropy"
    with pytest.warns(UserWarning, match="takes probabilities"):
        FAMILIES[name].build().compile("sgd", loss)
    for arguments in ({"classifier_activation": "softmax"}, {"include_top": False}):
        FAMILIES[name].build(**arguments).compile("sgd", loss)
