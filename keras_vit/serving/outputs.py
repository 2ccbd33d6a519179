"""The outputs of an exported model, as keras models that share its weights."""

import keras

from keras_vit.analysis import rollout_model
from keras_vit.compat.graph import graph_calls


def output_model(model, names):
    """Build a model from model input to several outputs.

    Args:
        model: a classifier of this package.
        names: keys of `OUTPUTS`.

    Returns:
        A keras model that returns a dict from name to tensor.
    """
    # Not the model's name, which may contain characters that TensorFlow scopes do not allow.
    # Not the model's name, which may hold what TensorFlow has no scopes of.
    return keras.Model(model.input, {name: OUTPUTS[name](model) for name in names}, name="outputs")


def class_scores(model):
    """Return the name of the model's output: `scores` if it ends in an activation, else `logits`."""
    return "scores" if model.config.classifier_activation else "logits"


def _classes(model):
    return model.output


def _features(model):
    """Return the input of the head; for a distilled model the mean of the inputs of its two heads."""
    read = _inputs_of(model, ("head", "head_dist"))
    return sum(read[1:], read[0]) / len(read)


def _tokens(model):
    """Return the input of the pooling: tokens, or the last map of a ResNet."""
    return _inputs_of(model, ("pooling",))[0]


def _attention(model):
    return rollout_model(model).output


def _inputs_of(model, names):
    return [call.input_tensors[0] for call in graph_calls(model) if call.operation.name in names]


OUTPUTS = {
    "logits": _classes,
    "scores": _classes,
    "features": _features,
    "tokens": _tokens,
    "attention": _attention,
}
