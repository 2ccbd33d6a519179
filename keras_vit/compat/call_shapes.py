"""Which layers a model calls on which shapes, down to the innermost, without computing anything.

Keras knows the shapes of the layers of a functional model, not of those inside them. Delete this file when it does;
tests/compat/test_call_shapes.py watches over the private names used here.
"""

import json
import threading
import typing

import keras
from keras import ops
from keras.src import backend

from keras_vit.compat.sublayers import sublayers

_ABSENT = object()


class LayerCall(typing.NamedTuple):
    """One call of one layer.

    Attributes:
        layer: the layer.
        input_shapes: the shape of each tensor among the arguments, in their order, the batch axis included.
        output_shape: the shape of the result; of several tensors, a structure of shapes.
        depth: 0 for a layer of the model itself, 1 for a layer inside that one, and so on.
    """

    layer: keras.layers.Layer
    input_shapes: tuple
    output_shape: tuple
    depth: int


def call_shapes(model):
    """Runs a model on one abstract image, as in inference, and lists every layer call.

    The model is left as it was. Layers of equal class, config, weight shapes and inputs make equal calls, so that only
    the first of them is really run: of a ViT, one block.

    Args:
        model: a functional keras model with inputs of known size, also one of `build_deferred`. A batch of one is run
            through it.

    Returns:
        List of `LayerCall`, in the order of the calls, each before the calls that it makes itself.

    Raises:
        ValueError: if the size of an input is unknown.
    """
    watch = _Watch(model)
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    inputs = keras.tree.map_structure(_one_image, inputs)
    with watch:
        backend.compute_output_spec(watch.run, inputs)
    return watch.calls


def own_weights(layer):
    """Returns the weights of a layer that belong to no layer inside it."""
    inner = {id(weight) for sublayer in sublayers(layer) for weight in sublayer.weights}
    return [weight for weight in layer.weights if id(weight) not in inner]


def _one_image(tensor):
    if None in tensor.shape[1:]:
        raise ValueError(f"model must have inputs of known size; got {tensor.shape}")
    return keras.KerasTensor((1, *tensor.shape[1:]), dtype=tensor.dtype)


class _Watch:
    """Context in which each layer inside a model reports its calls, made by this thread, to `calls`."""

    def __init__(self, model):
        self.calls = []
        self._model = model
        self._thread = threading.get_ident()
        self._replaced = []  # (layer, name of the method, what the layer itself had under that name)

    def __enter__(self):
        for layer in sublayers(self._model):
            name = "quantized_call" if getattr(layer, "quantization_mode", None) else "call"
            self._replaced.append((layer, name, vars(layer).get(name, _ABSENT)))
            object.__setattr__(layer, name, self._watched(layer, getattr(layer, name)))  # past Keras's tracking
        return self

    def __exit__(self, *error):
        for layer, name, before in self._replaced:
            if before is _ABSENT:
                del vars(layer)[name]
            else:
                vars(layer)[name] = before

    def run(self, inputs):
        self.calls.clear()  # where the meta device fails, the torch backend starts once more
        self._depth, self._first = 0, {}
        return self._model(inputs, training=False)

    def _watched(self, layer, call):
        def watched(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return call(*args, **kwargs)
            key = _key(layer, args, kwargs)
            if key in self._first:
                return self._repeat(layer, *self._first[key])
            start, depth = len(self.calls), self._depth
            tensors = [x for x in keras.tree.flatten((args, kwargs)) if ops.is_tensor(x)]
            self.calls.append(LayerCall(layer, tuple(_shape(x) for x in tensors), None, depth))
            self._depth = depth + 1
            outputs = call(*args, **kwargs)
            self._depth = depth
            output_shape = _map_tensors(_shape, outputs)
            self.calls[start] = self.calls[start]._replace(output_shape=output_shape)
            self._first[key] = (layer, slice(start, len(self.calls)), _map_tensors(_spec, outputs))
            return outputs

        return watched

    def _repeat(self, layer, first, part, outputs):
        """Repeats the calls of the equal layer `first` in the name of `layer`; returns abstract zeros."""
        twins = {id(old): new for old, new in zip(_with_sublayers(first), _with_sublayers(layer), strict=True)}
        part = self.calls[part]
        for call in part:
            depth = call.depth - part[0].depth + self._depth
            self.calls.append(call._replace(layer=twins.get(id(call.layer), call.layer), depth=depth))
        return keras.tree.map_structure(
            lambda x: ops.zeros(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x, outputs
        )


def _key(layer, args, kwargs):
    """What two calls have in common that call equal layers on equal shapes."""
    arguments = repr(_map_tensors(lambda x: (_shape(x), backend.standardize_dtype(x.dtype)), (args, kwargs)))
    classes = tuple(type(inner) for inner in _with_sublayers(layer))
    return _config(layer), classes, tuple(tuple(weight.shape) for weight in layer.weights), arguments


def _config(layer):
    try:
        return json.dumps({**layer.get_config(), "name": None}, sort_keys=True)
    except (NotImplementedError, TypeError):  # a layer without a config, or not of plain values, equals itself alone
        return id(layer)


def _with_sublayers(layer):
    return [layer, *sublayers(layer)]


def _map_tensors(function, structure):
    return keras.tree.map_structure(lambda x: function(x) if ops.is_tensor(x) else x, structure)


def _shape(tensor):
    return tuple(tensor.shape)


def _spec(tensor):
    return keras.KerasTensor(_shape(tensor), dtype=backend.standardize_dtype(tensor.dtype))
