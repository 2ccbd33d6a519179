"""What an exported model answers with, as keras models that share its weights."""

import keras

from keras_vit.analysis import rollout_model
from keras_vit.compat.graph import graph_calls


def output_model(model, names):
    """Build a model from model input to several outputs at once.

    Args:
        model: a classifier of this package.
        names: among the keys of `OUTPUTS`.

    Returns:
        A keras model that gives a dict from name to tensor.
    """
    # Not the model's name, which may hold what TensorFlow has no scopes of.
    return keras.Model(model.input, {name: OUTPUTS[name](model) for name in names}, name="outputs")


def class_scores(model):
    """The name of what the model ends in: `scores` after an activation of its own, else `logits`."""
    return "scores" if model.config.classifier_activation else "logits"


def _classes(model):
    return model.output


def _features(model):
    """What the head reads; of a distilled model the mean of what its two heads read, as with `include_top=False`."""
    read = _inputs_of(model, ("head", "head_dist"))
    return sum(read[1:], read[0]) / len(read)


def _tokens(model):
    """What the pooling reads: tokens, or the last map of a ResNet."""
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
