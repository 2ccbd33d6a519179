"""The model of a training run: built from a name or a config, or given, and compared with the images."""

from keras_vit.checkpoints.load import load_weights
from keras_vit.config import ImageConfig
from keras_vit.models import Model, build_model, resize
from keras_vit.models.distillation import student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training.recipe_checks import CROPPED, SELF_SUPERVISED
from keras_vit.zoo import VARIANTS, create_model, variant_name


def model_to_train(recipe, class_names, model=None, weights=None):
    """Return the model to train, with the class names of the images as its labels.

    A model that predicts no labels is not compared with the classes of the images.

    Args:
        recipe: `Recipe`. A model that is built here uses the recipe's dtype, rates and image size.
        class_names: class names of the images.
        model, weights: as in `keras_vit.train`.

    Raises:
        TypeError: if the model does not contain exactly one model of this package.
        ValueError: if the classes of model and images differ, or a built model is given with weights.
    """
    if not isinstance(model, Model):
        model = _create(recipe, len(class_names), model, weights)
        model.labels = class_names
        if recipe.loss in SELF_SUPERVISED:
            model = resize(model, "any") if recipe.loss == CROPPED and hasattr(model.config, "table_grid") else model
            model = SELF_SUPERVISED[recipe.loss](model, **(recipe.pretraining or {}))
    elif weights is not None:
        raise ValueError("weights must be None with a built model: load them first with keras_vit.load_weights")
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(f"model must be or contain one model of keras_vit; {model.name!r} has none or several")
    if isinstance(model, tuple(SELF_SUPERVISED.values())):
        return model
    if model.output_shape[-1] != len(class_names):
        raise ValueError(f"model must have the {len(class_names)} classes of source; got {model.output_shape[-1]}")
    if encoder is student_of(model):
        encoder.labels = class_names
    return model


def _create(recipe, classes, model, weights):
    """Return a new model of a name or a config."""
    if isinstance(model, str):
        fields = recipe.model_arguments(VARIANTS[variant_name("model", model)].config_class)
        return create_model(model, weights=weights, classes=classes, **fields)
    config = recipe.model if model is None else model
    if config is None:
        raise ValueError(f"model must be given: recipe {recipe.name!r} does not define one")
    if not isinstance(config, ImageConfig):
        raise TypeError(
            f"model must be a model of keras_vit, a config, a name or None; got {type(model).__name__} "
            "(wrap other Keras layers in keras_vit.Model(inputs, outputs))"
        )
    built = build_model(recipe.configure(config, classes=classes))
    if weights is not None:
        load_weights(built, weights)
    return built
