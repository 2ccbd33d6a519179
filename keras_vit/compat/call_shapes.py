"""All layer calls of a model with their shapes, including sub-layers, without computation.

Keras knows the shapes only of the layers of a functional model, not of their sub-layers. Delete this file when it does;
tests/compat/test_call_shapes.py checks the private names used here.
"""

import json
import threading
import typing

import keras
from keras import ops

from keras_vit.compat.graph import sublayers

_ABSENT = object()


class LayerCall(typing.NamedTuple):
    """One call of one layer.

    Attributes:
        layer: the layer.
        input_shapes: the shape of each tensor argument, in order, batch axis included.
        output_shape: the shape of the result, or a structure of shapes for several tensors.
        depth: 0 for a layer of the model itself, 1 for a sub-layer of it, and so on.
    """

    layer: keras.layers.Layer
    input_shapes: tuple
    output_shape: tuple
    depth: int


def call_shapes(model):
    """Run a model on one abstract image in inference mode and list every layer call.

    The model does not change. Layers with equal class, config, weight shapes and inputs make equal calls, so only the
    first of them is run: one block of a ViT.

    Args:
        model: a functional Keras model with inputs of known size; it may come from `build_deferred`. The batch size is
            1.

    Returns:
        List of `LayerCall` in call order; each call precedes the calls inside it.

    Raises:
        ValueError: if the size of an input is unknown.
    """
    watch = _Watch(model)
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    inputs = keras.tree.map_structure(_one_image, inputs)
    with watch:
        _Run(watch)(inputs)
    return watch.calls


def _one_image(tensor):
    if None in tensor.shape[1:]:
        raise ValueError(f"model must have inputs of known size; got {tensor.shape}")
    return keras.KerasTensor((1, *tensor.shape[1:]), dtype=tensor.dtype)


class _Run(keras.Operation):
    """The run of a watch as an operation, which Keras computes without numbers."""

    def __init__(self, watch):
        super().__init__()
        self.call = watch.run


class _Watch:
    """Context in which each layer inside a model records its calls from this thread in `calls`."""

    def __init__(self, model):
        self.calls = []
        self._model = model
        self._thread = threading.get_ident()
        self._replaced = []  # (layer, name of the method, the layer's own attribute of that name, if any)

    def __enter__(self):
        for layer in sublayers(self._model):
            name = "quantized_call" if getattr(layer, "quantization_mode", None) else "call"
            self._replaced.append((layer, name, vars(layer).get(name, _ABSENT)))
            object.__setattr__(layer, name, self._watched(layer, getattr(layer, name)))  # bypasses Keras's tracking
        return self

    def __exit__(self, *error):
        for layer, name, before in self._replaced:
            if before is _ABSENT:
                del vars(layer)[name]
            else:
                vars(layer)[name] = before

    def run(self, inputs):
        self.calls.clear()  # the torch backend runs twice if the meta device fails
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
        """Record the calls of the equal layer `first` again under `layer`; return abstract zeros."""
        twins = {id(old): new for old, new in zip(_with_sublayers(first), _with_sublayers(layer), strict=True)}
        part = self.calls[part]
        for call in part:
            depth = call.depth - part[0].depth + self._depth
            self.calls.append(call._replace(layer=twins.get(id(call.layer), call.layer), depth=depth))
        return keras.tree.map_structure(
            lambda x: ops.zeros(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x, outputs
        )


def _key(layer, args, kwargs):
    """Return a key that is equal for calls of equal layers on equal shapes."""
    arguments = repr(_map_tensors(lambda x: (_shape(x), keras.backend.standardize_dtype(x.dtype)), (args, kwargs)))
    classes = tuple(type(inner) for inner in _with_sublayers(layer))
    return _config(layer), classes, tuple(tuple(weight.shape) for weight in layer.weights), arguments


def _config(layer):
    try:
        return json.dumps({**layer.get_config(), "name": None}, sort_keys=True)
    except (NotImplementedError, TypeError):  # a layer without a plain config equals only itself
        return id(layer)


def _with_sublayers(layer):
    return [layer, *sublayers(layer)]


def _map_tensors(function, structure):
    return keras.tree.map_structure(lambda x: function(x) if ops.is_tensor(x) else x, structure)


def _shape(tensor):
    return tuple(tensor.shape)


def _spec(tensor):
    return keras.KerasTensor(_shape(tensor), dtype=keras.backend.standardize_dtype(tensor.dtype))
