"""The public surface by inspection: exported functions and classes with their public methods and properties."""

import importlib
import inspect
import typing

import keras

ROOMS = (
    "keras_vit",
    "keras_vit.layers",
    "keras_vit.models",
    "keras_vit.analysis",
    "keras_vit.analysis.plots",
    "keras_vit.data",
    "keras_vit.data.augment",
    "keras_vit.evaluation",
    "keras_vit.training",
    "keras_vit.serving",
    "keras_vit.config",
)
_KERAS = (keras.layers.Layer, keras.Model)


class Public(typing.NamedTuple):
    """A public function, class, method or property.

    Attributes:
        name: full name, such as `keras_vit.models.base.Model.save`.
        value: the function or class; of a property, the function behind it.
        owner: class of a method or property, None of others.
        is_property: whether it is read like an attribute.
        is_keras: whether it stands in for something of Keras's layers and models, whose documentation holds for it.
    """

    name: str
    value: typing.Any
    owner: type | None = None
    is_property: bool = False
    is_keras: bool = False


def public_surface():
    """Lists everything public once, exported things first met first."""
    found = {}
    for exported in _exported():
        name = f"{exported.__module__}.{exported.__qualname__}"
        if name in found:
            continue
        found[name] = Public(name, exported)
        if inspect.isclass(exported):
            found.update((member.name, member) for member in _members(exported))
    return list(found.values())


def _exported():
    """Yields classes and functions of all `__all__`, and those of ours that an exported class inherits from."""
    for room in map(importlib.import_module, ROOMS):
        for name in room.__all__:
            value = getattr(room, name)
            if inspect.isclass(value):
                yield from (base for base in value.__mro__ if base.__module__.split(".")[0] == "keras_vit")
            elif inspect.isfunction(value):
                yield value


def _members(owner):
    for name, value in vars(owner).items():
        if name.startswith("_") and name != "__init__":
            continue
        is_property = isinstance(value, property) or type(value).__name__ == "cached_property"
        function = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        function = inspect.unwrap(function) if callable(function) else function
        # not what a dataclass writes itself, nor a class's attributes
        if not inspect.isfunction(function) or function.__module__ != owner.__module__:
            continue
        if name == "__init__" and hasattr(owner, "__dataclass_fields__"):
            continue
        is_keras = name != "__init__" and any(issubclass(owner, base) and hasattr(base, name) for base in _KERAS)
        yield Public(f"{owner.__module__}.{owner.__qualname__}.{name}", function, owner, is_property, is_keras)
