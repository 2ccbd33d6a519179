"""The model of a training run: built from a name or a config, or given, and compared with the images."""

import inspect

from keras_vit import checks
from keras_vit.checkpoints.load import load_weights
from keras_vit.config import ImageConfig
from keras_vit.models import Model, TaskModel, VisionTransformer, build_model, resize
from keras_vit.models.distillation import result_of, student_of
from keras_vit.models.encoders import Encoder, find_encoder
from keras_vit.training.recipe_checks import CROPPED, SELF_SUPERVISED, TASKS
from keras_vit.zoo import VARIANTS, create_model, variant_name

_COUNTS = ("classes", "num_keypoints")  # arguments of task models


def model_to_train(recipe, class_names, model=None, weights=None, steps=None):
    """Return the model to train, with the class names of the images as its labels.

    A model that predicts no labels is not compared with the classes of the images.

    Args:
        recipe: `Recipe`. A model that is built here uses the recipe's dtype, rates and image size.
        class_names: class names of the images.
        model, weights: as in `keras_vit.train`.
        steps: steps of the run, for an `EoMTTraining`.

    Raises:
        TypeError: if the model does not contain exactly one model of this package.
        ValueError: if the classes of model and images differ, or a built model is given with weights.
    """
    if recipe.loss in TASKS:
        return _task_model(recipe, class_names, model, weights, steps)
    is_new = not isinstance(model, Model)
    if is_new:
        model = _create(recipe, len(class_names), model, weights)
        model.labels = class_names
    elif weights is not None:
        raise ValueError("weights must be None with a built model: load them first with keras_vit.load_weights")
    wanted = SELF_SUPERVISED.get(recipe.loss)
    if wanted is not None and (is_new or (recipe.loss == CROPPED and isinstance(model, Encoder))):
        model = resize(model, "any") if recipe.loss == CROPPED and hasattr(model.config, "table_grid") else model
        model = wanted(model, **(recipe.pretraining or {}))
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


def _task_model(recipe, class_names, model, weights, steps):
    """Return the task model to train, or its `EoMTTraining`."""
    task = TASKS[recipe.loss]
    if isinstance(model, Model) and weights is not None:
        raise ValueError("weights must be None with a built model: load them first with keras_vit.load_weights")
    if isinstance(model, task.trained) and not isinstance(model, task.models):
        result_of(model).labels = result_of(model).labels or class_names or None
        return model
    if not isinstance(model, TaskModel):
        encoder = model if isinstance(model, VisionTransformer) else _create(recipe, None, model, weights)
        model = _with_head(recipe, encoder, class_names)
    if not isinstance(model, task.models):
        expected = " or ".join(kind.__name__ for kind in task.models)
        raise TypeError(f"model must be a {expected} for loss={recipe.loss!r}; got a {type(model).__name__}")
    count = next((model.arguments[name] for name in _COUNTS if name in model.arguments), len(class_names))
    if count != len(class_names):
        raise ValueError(f"model must have the {len(class_names)} classes of source; got {count}")
    if recipe.frozen:
        model.encoder.trainable = False
    model.labels = model.labels or class_names or None
    trained = task.trained[0]
    return model if isinstance(model, task.trained) else trained(model, steps=steps, **(recipe.pretraining or {}))


def _with_head(recipe, encoder, class_names):
    """Return the task model of the recipe on an encoder."""
    arguments, kinds = dict(recipe.head or {}), {kind.__name__: kind for kind in TASKS[recipe.loss].models}
    name = arguments.pop("class_name", next(iter(kinds)))
    kind = kinds[checks.check_choice("class_name of head", name, tuple(kinds))]
    counted = next((name for name in _COUNTS if name in inspect.signature(kind).parameters), None)
    return kind(encoder, **({counted: len(class_names)} if counted else {}), **arguments)


def _create(recipe, classes, model, weights):
    """Return a new model of a name or a config; without classes, without a head."""
    fields = {"include_top": False} if classes is None else {"classes": classes}
    if isinstance(model, str):
        fields |= recipe.model_arguments(VARIANTS[variant_name("model", model)].config_class)
        return create_model(model, weights=weights, **fields)
    config = recipe.model if model is None else model
    if config is None:
        raise ValueError(f"model must be given: recipe {recipe.name!r} does not define one")
    if not isinstance(config, ImageConfig):
        raise TypeError(
            f"model must be a model of keras_vit, a config, a name or None; got {type(model).__name__} "
            "(wrap other Keras layers in keras_vit.Model(inputs, outputs))"
        )
    built = build_model(recipe.configure(config, **fields))
    if weights is not None:
        load_weights(built, weights)
    return built
