"""Building the model of a run from a name, a config, a built model or the recipe alone."""

from keras_vit.checkpoints.load import load_weights
from keras_vit.config import ImageConfig
from keras_vit.models import MaskedPatchPrediction, base, build_model
from keras_vit.models.distillation import student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training.recipe_checks import MASKED_PATCHES
from keras_vit.zoo import VARIANTS, create_model, variant_name


def build(recipe, source, validation=None, model=None, weights=None):
    """Return the model to train, with the class names of `source` as its labels.

    A recipe that predicts masked patches gets a `MaskedPatchPrediction` around the model, unless `model` is built. It
    uses no labels, so the classes are not checked for it.

    Args:
        recipe: `Recipe`. A model that is built here uses the recipe's dtype, rates and image size.
        source, validation: `ImageSource`; the model gets the classes of `source`.
        model, weights: as in `keras_vit.train`.

    Raises:
        TypeError: if the model does not contain exactly one model of this package.
        ValueError: if the classes of model, source and validation differ, or a built model is given with weights.
    """
    if not isinstance(model, base.Model):
        model = _build(recipe, source.class_names, model, weights)
    elif weights is not None:
        raise ValueError("weights must be None with a built model: load them first with keras_vit.load_weights")
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(f"model must be or contain one model of keras_vit; {model.name!r} has none or several")
    if isinstance(model, MaskedPatchPrediction):
        return model
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
    return model


def _build(recipe, labels, model, weights):
    if isinstance(model, str):
        variant = VARIANTS[variant_name("model", model)]
        fixed = recipe.model_arguments(variant.config_class)
        built = create_model(model, weights=weights, classes=len(labels), **fixed)
    else:
        config = recipe.model if model is None else model
        if config is None:
            raise ValueError(f"model must be given: recipe {recipe.name!r} does not define one")
        if not isinstance(config, ImageConfig):
            raise TypeError(
                f"model must be a model of keras_vit, a config, a name or None; got {type(model).__name__} "
                "(wrap other Keras layers in keras_vit.Model(inputs, outputs))"
            )
        built = build_model(recipe.configure(config.replace(classes=len(labels))))
        if weights is not None:
            load_weights(built, weights)
    built.labels = labels
    return MaskedPatchPrediction(built) if recipe.loss == MASKED_PATCHES else built


def _shortened(names):
    return list(names) if len(names) <= 8 else f"{len(names)} classes from {names[0]!r} to {names[-1]!r}"
