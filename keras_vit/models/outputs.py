"""The activation of a Keras model's outputs."""

import keras

from keras_vit.compat.graph import graph_calls


def output_activation(model):
    """Return the name of the output activation: `linear`, `softmax`, `sigmoid` and so on.

    It is `linear` for a model that is neither functional nor a `keras.Sequential`, whose activation is unknown.
    """
    operation = _last_operation(model)
    if isinstance(operation, keras.Model):
        return output_activation(operation)
    if type(operation).__name__ in ("Softmax", "Sigmoid"):  # the layer, or the operation of keras.ops
        return type(operation).__name__.lower()
    activation = getattr(operation, "activation", None)
    return "linear" if activation is None else getattr(activation, "__name__", type(activation).__name__)


def _last_operation(model):
    if isinstance(model, keras.Sequential):
        return model.layers[-1] if model.layers else None
    nodes = graph_calls(model) or []
    outputs = {id(tensor) for tensor in model.outputs} if nodes else set()
    return next((node.operation for node in nodes if any(id(tensor) in outputs for tensor in node.outputs)), None)
