"""The layers inside a model, at any depth, and the owner of each variable.

`keras.Model.layers` has only the top-level layers, and Keras does not publish the file names of variables. Delete this
file when Keras has a public traversal; tests/compat/test_sublayers.py checks the private names used here.
"""

import collections
import dataclasses
import typing

import keras
from keras.src.utils import naming


@dataclasses.dataclass(frozen=True)
class OwnedVariable:
    """A weight of a model.

    Attributes:
        variable: the weight.
        layer: the layer that owns it directly.
        stored_name: names of the layers that contain it, then its number, as in Keras's files. Layers of an inner
            model, whose names may be generated, have class and number instead.
    """

    variable: object
    layer: object
    stored_name: str


def sublayers(model):
    """Return the layers of a model and their sub-layers, in the order in which they were attached."""
    return list(model._flatten_layers(include_self=False, recursive=True))


def keep_beside_graph(model, layer):
    """Track an attribute of a functional model outside of its graph as a sub-layer, as Keras does since 3.15."""
    if not any(layer is known for known in model._layers):
        model._layers.append(layer)


class InnerLayer(typing.NamedTuple):
    """A layer inside a model.

    Attributes:
        path: names of the layers that contain it, then its own: `block_00/mlp`.
        layer: the layer.
        is_outer_trainable: whether the enclosing layer is trainable; True for a layer of the model itself.
    """

    path: str
    layer: object
    is_outer_trainable: bool


def inner_layers(model):
    """Return an `InnerLayer` for each layer and sub-layer of a model, outer before inner.

    An inner model is included, but its layers are not.
    """
    found = {}
    for layer in model.layers:
        _descend(layer, (layer.name,), True, found)
    return list(found.values())


def _descend(layer, names, is_outer_trainable, found):
    if id(layer) in found:
        return
    found[id(layer)] = InnerLayer("/".join(names), layer, is_outer_trainable)
    for child in [] if isinstance(layer, keras.Model) else layer._layers:
        _descend(child, (*names, child.name), layer.trainable, found)


def owned_variables(model):
    """Return an `OwnedVariable` for each of `model.weights`, in order."""
    owned = {}
    for layer in model._layers:
        _collect(layer, (layer.name,), owned)
    return [owned[id(variable)] for variable in model.weights]


def _collect(layer, names, owned):
    for number, variable in enumerate(layer._trainable_variables + layer._non_trainable_variables):
        stored_name = "/".join((*names, str(number)))
        owned.setdefault(id(variable), OwnedVariable(variable, layer, stored_name))
    children = _numbered(layer.layers) if isinstance(layer, keras.Model) else [(x.name, x) for x in layer._layers]
    for name, child in children:
        _collect(child, (*names, name), owned)


def _numbered(layers):
    """Return pairs (class and number, layer): `dense`, `dense_1` and so on."""
    counts = collections.Counter()
    for layer in layers:
        name = naming.to_snake_case(type(layer).__name__)
        yield (f"{name}_{counts[name]}" if counts[name] else name), layer
        counts[name] += 1
