"""Layers, calls and variables inside a model, at any depth.

`keras.Model.layers` has only the top-level layers; `layer.output` fails if a layer is called more than once, and for an
inner model it is not the tensor of this call; Keras does not publish the file names of variables. Delete a function
when Keras has a public one; tests/compat/test_graph.py checks for it.
"""

import collections
import dataclasses
import re
import typing

import keras


@dataclasses.dataclass(frozen=True)
class OwnedVariable:
    """A weight of a model.

    Attributes:
        variable: the weight.
        layer: the layer that owns it directly.
        stored_name: names of the layers that contain it, then its number, as in Keras's files. Layers of an inner
            model have class and number instead, because their names may be generated.
    """

    variable: object
    layer: object
    stored_name: str


class InnerLayer(typing.NamedTuple):
    """A layer inside a model.

    Attributes:
        path: names of the layers that contain it, then its own: `block_00/mlp`.
        layer: the layer.
    """

    path: str
    layer: object


def graph_calls(model):
    """Return the calls of layers and operations of a functional model, from inputs to outputs.

    Returns:
        List of Keras nodes: `operation` is the layer, `outputs` are the tensors of the call, `parent_nodes` the calls
        that produced its inputs. None if the model is neither functional nor a built Sequential.
    """
    model = getattr(model, "_functional", model)  # the attribute of a Sequential
    by_depth = getattr(model, "_nodes_by_depth", None)
    return by_depth and [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def sublayers(model):
    """Return the layers of a model and their sub-layers, in the order in which they were attached."""
    return list(model._flatten_layers(include_self=False, recursive=True))


def keep_beside_graph(model, layer):
    """Track a layer that is not in the graph of a functional model as a sub-layer, as Keras 3.15 and later do."""
    if not any(layer is known for known in model._layers):
        model._layers.append(layer)


def inner_layers(model):
    """Return an `InnerLayer` for each layer and sub-layer of a model, outer before inner.

    An inner model is included, but its layers are not.
    """
    found = {}
    for layer in model.layers:
        _descend(layer, (layer.name,), found)
    return list(found.values())


def _descend(layer, names, found):
    if id(layer) in found:
        return
    found[id(layer)] = InnerLayer("/".join(names), layer)
    for child in [] if isinstance(layer, keras.Model) else layer._layers:
        _descend(child, (*names, child.name), found)


def owned_variables(model):
    """Return an `OwnedVariable` for each of `model.weights`, in order."""
    owned = {}
    for layer in model._layers:
        _collect(layer, (layer.name,), owned)
    return [owned[id(variable)] for variable in model.weights]


def _collect(layer, names, owned):
    inner = {id(weight) for sublayer in sublayers(layer) for weight in sublayer.weights}
    for number, variable in enumerate(weight for weight in layer.weights if id(weight) not in inner):
        owned.setdefault(id(variable), OwnedVariable(variable, layer, "/".join((*names, str(number)))))
    children = _numbered(layer.layers) if isinstance(layer, keras.Model) else [(x.name, x) for x in layer._layers]
    for name, child in children:
        _collect(child, (*names, name), owned)


def _numbered(layers):
    """Return pairs (class and number, layer): `dense`, `dense_1` and so on."""
    counts = collections.Counter()
    for layer in layers:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", type(layer).__name__).lower()
        yield (f"{name}_{counts[name]}" if counts[name] else name), layer
        counts[name] += 1
