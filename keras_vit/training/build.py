"""Building the model of a run from a name, a config, a built model or the recipe alone."""

from keras_vit.checkpoints.load import load_weights
from keras_vit.config import ImageConfig
from keras_vit.models import MaskedPatchPrediction, base, build_model
from keras_vit.models.distillation import student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training.losses import MASKED_PATCHES
from keras_vit.zoo import VARIANTS, create_model, variant_name


def build(recipe, source, model=None, weights=None):
    """Return the model to train, with the class names of `source` as its labels.

    A recipe that predicts masked patches gets a `MaskedPatchPrediction` around the model, unless `model` is built.

    Args:
        recipe: `Recipe`. A model that is built here uses the recipe's dtype, rates and image size.
        source: `ImageSource`; the model gets its classes.
        model, weights: as in `keras_vit.train`.
    """
    if isinstance(model, base.Model):
        if weights is not None:
            raise ValueError("weights must be None with a built model: load them first with keras_vit.load_weights")
        return model
    built = _build(recipe, source.class_names, model, weights)
    return MaskedPatchPrediction(built) if recipe.loss == MASKED_PATCHES else built


def _build(recipe, labels, model, weights):
    if isinstance(model, str):
        variant = VARIANTS[variant_name("model", model)]
        fixed = recipe.model_arguments(variant.config_class)
        return create_model(model, weights=weights, classes=len(labels), labels=labels, **fixed)
    if model is None and recipe.model is None:
        raise ValueError(f"model must be given: recipe {recipe.name!r} does not define one")
    config = recipe.model if model is None else model
    if not isinstance(config, ImageConfig):
        raise TypeError(
            f"model must be a model of keras_vit, a config, a name or None; got {type(model).__name__} "
            "(wrap other Keras layers in keras_vit.Model(inputs, outputs))"
        )
    built = build_model(recipe.configure(config.replace(classes=len(labels))), labels=labels)
    if weights is not None:
        load_weights(built, weights)
    return built


def check_classes(model, source, validation):
    """Check that model, source and validation have the same classes, and set the labels of the model.

    The prediction of masked patches uses no labels, so nothing is checked for it.

    Raises:
        TypeError: if `model` does not contain exactly one model of this package.
        ValueError: if the classes differ.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(f"model must be or contain one model of keras_vit; {model.name!r} has none or several")
    if isinstance(model, MaskedPatchPrediction):
        return
    outputs = model.output_shape[-1]
    if outputs != len(source.class_names):
        raise ValueError(
            "model must have one class per class of source; "
            f"got {outputs} classes in the model, {len(source.class_names)} in source"
        )
    if validation is not None and tuple(validation.class_names) != tuple(source.class_names):
        raise ValueError(
            "validation must have the classes of source; "
            f"got {_shortened(validation.class_names)} in validation, "
            f"{_shortened(source.class_names)} in source"
        )
    if encoder is student_of(model):
        encoder.labels = source.class_names


def _shortened(names):
    return list(names) if len(names) <= 8 else f"{len(names)} classes from {names[0]!r} to {names[-1]!r}"
