"""The layers inside a model, however deep, and which of them owns which variable.

`keras.Model.layers` has those of the top alone, and what a layer writes to a file is not public either. Delete this
file when Keras has a public walk; tests/compat/test_sublayers.py watches over the private names.
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
        layer: the layer that owns it, itself and not a sub-layer of it.
        stored_name: names of the layers that contain it, then its number: how files of Keras lay it out. The layers of
            a model inside the model, whose names may have been made up, go by class and number there.
    """

    variable: object
    layer: object
    stored_name: str


def sublayers(model):
    """Returns the layers of a model and those inside them, in the order in which they were attached."""
    return list(model._flatten_layers(include_self=False, recursive=True))


def keep_beside_graph(model, layer):
    """Makes an attribute of a functional model that is outside of its graph a sub-layer, as Keras does from 3.15 on."""
    if not any(layer is known for known in model._layers):
        model._layers.append(layer)


class InnerLayer(typing.NamedTuple):
    """A layer inside a model.

    Attributes:
        path: names of the layers that contain it, then its own: `block_00/mlp`.
        layer: the layer.
        is_outer_trainable: whether the layer around it is trainable; True for a layer of the model itself.
    """

    path: str
    layer: object
    is_outer_trainable: bool


def inner_layers(model):
    """Returns an `InnerLayer` for each layer of a model and those inside them, the outer before the inner.

    Of a model inside the model only itself is among them, not its layers.
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
    """Returns an `OwnedVariable` for each of `model.weights`, in their order."""
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
    """Pairs (class and number, layer): `dense`, `dense_1` and so on."""
    counts = collections.Counter()
    for layer in layers:
        name = naming.to_snake_case(type(layer).__name__)
        yield (f"{name}_{counts[name]}" if counts[name] else name), layer
        counts[name] += 1
