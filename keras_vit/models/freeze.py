"""freeze: keeps the weights of the first layers of a model fixed in training."""

import warnings

import keras

from keras_vit import checks
from keras_vit.compat.graph import graph_calls


def freeze(model: keras.Model, up_to: str | None = None) -> list[str]:
    """Set `trainable = False` on a layer and on all layers that feed it.

    Call it before `compile`: Keras trains the weights that were trainable when its training step was built. Layers that
    are already frozen stay frozen. Only weights are frozen: dropout and stochastic depth stay active in frozen layers,
    and a frozen `BatchNormalization` uses its stored statistics, as in Keras.

    Args:
        model: a model of this package, or a functional Keras model around one. An inner model counts as one layer and
            is frozen as a whole; to freeze a part of it, pass the inner model.
        up_to: name of a layer of the model, such as `"block_08"` or `"pooling"`; if the layer is called several times,
            the first call counts. None freezes all but the last layers with weights before each output, for a linear
            probe: the head, or the two heads of a distilled model, stay trainable.

    Returns:
        List of the names of the layers up to there, starting at the input, without the input layers.

    Raises:
        TypeError: if `model` is not a functional Keras model.
        ValueError: if it has no layer of that name.
    """
    nodes = _nodes(model)
    layers = _layers(_ancestors(_ends(model, nodes, up_to)), nodes)
    for layer in layers:
        layer.trainable = False
    if getattr(model, "optimizer", None) is not None and model.optimizer.built:
        warnings.warn(f"{model.name} was compiled before it was frozen: compile it again to train it", stacklevel=2)
    return [layer.name for layer in layers]


def _nodes(model):
    """Return the calls of layers and operations in the model's graph, from inputs to outputs."""
    nodes = graph_calls(model)
    if nodes is None:
        raise TypeError(f"model must be a functional keras model; got {type(model).__name__}")
    return nodes


def _ends(model, nodes, up_to):
    """Return the calls that end the frozen part."""
    if up_to is None:
        return [parent for node in nodes if _has_weights(node.operation) for parent in node.parent_nodes]
    names = [layer.name for layer in model.layers]
    if up_to not in names:
        raise ValueError(
            f"up_to must name a layer of {model.name!r}, one of {', '.join(map(repr, names))}; "
            f"got up_to={up_to!r}{_hint(model, names, up_to)}"
        )
    return [next(node for node in nodes if node.operation.name == up_to)]


def _hint(model, names, up_to):
    for layer in model.layers:
        if isinstance(layer, keras.Model) and up_to in [inner.name for inner in layer.layers]:
            return f" (a layer of the inner model {layer.name!r}: freeze(model.get_layer({layer.name!r}), {up_to!r}))"
    return checks.suggestion(up_to, names)


def _ancestors(ends):
    """Return the given calls and all calls that their results depend on."""
    found, waiting = set(), list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.parent_nodes
    return found


def _layers(chosen, nodes):
    operations = dict.fromkeys(node.operation for node in nodes if node in chosen)
    return [x for x in operations if isinstance(x, keras.Layer) and not isinstance(x, keras.layers.InputLayer)]


def _has_weights(operation):
    return isinstance(operation, keras.Layer) and bool(operation.weights)
