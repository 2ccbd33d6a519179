"""Inspection of a Keras model: the models of this package inside it, its images, layers and output activation."""

import warnings
from typing import Any

import keras

from keras_vit.compat.graph import graph_calls
from keras_vit.config import ImageConfig, Preprocessing
from keras_vit.models.training_model import TrainingModel


class Encoder:
    """Mark the models of this package, for the functions below.

    `ImageModel` is the only subclass.

    Attributes:
        config, preprocessing, labels: as in `ImageModel`.
    """

    config: Any
    preprocessing: Any
    labels: Any
    get_layer: Any


def is_encoder(model):
    """Return whether a model of this package has no head."""
    return isinstance(model, Encoder) and not model.config.include_top


def is_projection(model):
    """Return whether the head of a model is a projection to features, as that of a CLIP, and not a classifier."""
    config = model.config
    return config.include_top and config.field("head.bias") is False and not config.field("head.normalize")


def check_model(model):
    """Return `model` if it is a model of this package; otherwise raise `TypeError`."""
    if not isinstance(model, Encoder):
        raise TypeError(f"model must be a model of keras_vit; got {described(model)}")
    return model


def described(model):
    """Return a description of an object that is not a model of this package, with a hint if one is known."""
    layers = model.layers if isinstance(model, keras.Model) else ()
    name = type(model).__name__
    inside = [layer.name for layer in layers if isinstance(layer, Encoder)]
    if inside:
        return f"{name} around one (give model.get_layer({inside[0]!r}))"
    if any(type(layer).__module__.startswith("keras_vit.layers") for layer in layers):
        return f"{name} with keras_vit layers, as from keras.models.clone_model (keras_vit.clone(model) copies a model)"
    return name


def error_of_channels(model, inputs):
    """Return the error about channels-first images as the first of the inputs of a model; None for other inputs."""
    try:
        (_, first, _, last), (_, _, _, channels) = inputs[0].shape, model.inputs[0].shape
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # not one tensor of images
        return None
    if first != channels or last == channels:
        return None
    return ValueError(
        f"{model.name} takes channels-last images (batch, height, width, {channels}), whatever "
        f"keras.config.image_data_format() is; got {tuple(inputs[0].shape)}: keras.ops.moveaxis(images, 1, -1)"
    )


def find_encoder(model):
    """Return the one model of this package that `model` is or contains; None if there is none or several."""
    found = find_encoders(model)
    return found[0] if len(found) == 1 else None


def find_encoders(model):
    """Return every model of this package that `model` is or contains, at any depth.

    The teacher of a `Distiller` is not included.
    """
    if isinstance(model, Encoder):
        return [model]
    if isinstance(model, TrainingModel):  # its graph may contain the layers of the trained model, but not that model
        return find_encoders(model.trained_model())
    if isinstance(getattr(model, "encoder", None), Encoder):  # of a task model, whose graph has the layers of both
        return [model.encoder]
    return [found for layer in getattr(model, "layers", ()) for found in find_encoders(layer)]


def called_layers(model):
    """Yield the layers that a model calls, in call order; an inner model yields its own layers.

    A model without a graph yields the layers of the one model of this package that it contains, if any.
    """
    nodes = graph_calls(model)
    if nodes is None:
        encoder = find_encoder(model)
        yield from () if encoder is None else called_layers(encoder)
        return
    for node in nodes:
        yield from called_layers(node.operation) if isinstance(node.operation, keras.Model) else (node.operation,)


def read_by_head(model):
    """Return the names of the layers whose outputs are the inputs of the heads, or would be in a model without a head.

    The model is one of this package. A distilled model has two such layers.
    """
    calls = graph_calls(model)
    made_by = {id(tensor): call.operation.name for call in calls for tensor in call.outputs}
    readers = [call for call in calls if call.operation.name in ("head", "head_dist")]
    readers = readers or [call for call in calls if call.operation.name == "average"]  # distilled, include_top=False
    read = [tensor for call in readers for tensor in call.input_tensors] or [model.output]
    return [made_by[id(tensor)] for tensor in read]


def preprocessing_of(model):
    """Return the `Preprocessing` of a model's inputs, or None if it is unknown.

    It is known if `model` is a model of this package, has the layers of one behind its inputs, or passes its inputs
    unchanged to exactly one. Of other models, it is their attribute `preprocessing`, which a user may set.
    """
    if isinstance(getattr(model, "preprocessing", None), Preprocessing):
        return model.preprocessing
    encoder = find_encoder(model)
    if encoder is not None:
        return encoder.preprocessing if _is_fed_directly(model, encoder) else None
    owner = shared_graph(model)
    return None if owner is None else owner.preprocessing


def shared_graph(model):
    """Return the model of this package whose input and first layers a model has; None if there is none."""
    tensor = (getattr(model, "inputs", None) or [None])[0]
    owner = getattr(tensor, "image_model", None)
    first = [call.operation for call in graph_calls(model) or () if any(tensor is x for x in call.input_tensors)]
    return owner if owner is not None and any(layer in first for layer in owner.layers) else None


def score_activations(model):
    """Return the activation of a classifier's output, or None, and the activation that gives scores."""
    config = getattr(model, "config", None)
    if isinstance(config, ImageConfig):
        return config.classifier_activation, config.score_activation
    own, named = output_activation(model), labelled_model(model)
    if own != "linear":
        return own, own
    usual = "sigmoid" if count_classes(model) == 1 else "softmax"
    return (None, usual) if named is model else score_activations(named)


def labelled_model(model):
    """Return the model whose `labels` name the outputs of a model: the one of this package inside, or itself.

    The inner model is returned if the layers around it have no weights, as a softmax or a rescaling.
    """
    encoder = find_encoder(model)
    is_bare = encoder is not None and len(encoder.weights) == len(model.weights)
    return encoder if is_bare and encoder.output_shape == model.output_shape else model


def labels_of(model):
    """Return the names of the outputs of a classifier, or None, see `labelled_model`."""
    labels, classes = getattr(labelled_model(model), "labels", None), model.output_shape[-1]
    if labels is not None and len(labels) != classes:
        raise ValueError(f"labels of {model.name} must name each of its {classes} classes; got {len(labels)} names")
    return labels and tuple(labels)


def count_classes(model):
    """Return the length of a model's output, or None if it has several outputs or no known shape."""
    shape = getattr(model, "output_shape", None)
    return shape[-1] if isinstance(shape, tuple) else None


def keep_class_names(model, names):
    """Set the `labels` of a model that is trained on classes of these names, if it has none."""
    model = getattr(model, "student", model)
    named, names = labelled_model(model), tuple(names)
    labels = getattr(named, "labels", None)
    if labels is None and count_classes(model) == len(names):
        named.labels = names
    elif labels is not None and tuple(labels) != names and sorted(labels) == sorted(names):
        text = f"{named.name} has the names of the classes of the data as labels, but in another order: set its labels"
        warnings.warn(text, stacklevel=2)


def output_activation(model):
    """Return the name of the output activation: `linear`, `softmax`, `sigmoid` and so on.

    It is `linear` for a model that is neither functional nor a `keras.Sequential`, whose activation is unknown.
    """
    is_stack = isinstance(model, keras.Sequential)
    operations = model.layers[-1:] if is_stack else [call.operation for call in output_calls(model)]
    operation = operations[0] if operations else None
    if isinstance(operation, keras.Model):
        return output_activation(operation)
    if type(operation).__name__ in ("Softmax", "Sigmoid"):  # the layer, or the operation of keras.ops
        return type(operation).__name__.lower()
    activation = getattr(operation, "activation", None)
    return "linear" if activation is None else getattr(activation, "__name__", type(activation).__name__)


def _is_fed_directly(model, encoder):
    if isinstance(model, TrainingModel):
        return _is_fed_directly(model.trained_model(), encoder)
    if model is encoder:
        return True
    calls = graph_calls(model) or []
    inputs = {call for call in calls if isinstance(call.operation, keras.layers.InputLayer)}
    first = [call.operation for call in calls if call.parent_nodes and set(call.parent_nodes) <= inputs]
    return any(isinstance(layer, keras.Model) and _is_fed_directly(layer, encoder) for layer in first)


def output_calls(model):
    """Return the calls that give the outputs of a functional model; an empty list for other models."""
    nodes = graph_calls(model) or []
    outputs = {id(tensor) for tensor in model.outputs} if nodes else set()
    return [node for node in nodes if any(id(tensor) in outputs for tensor in node.outputs)]
