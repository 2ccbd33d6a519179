"""The public surface by inspection: exported functions and classes with their public methods and properties."""

import dataclasses
import functools
import importlib
import inspect
import typing

import keras

PACKAGES = (
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
    "keras_vit.tasks",
    "keras_vit.demo",
    "keras_vit.config",
)
_KERAS = (keras.layers.Layer, keras.Model, keras.callbacks.Callback, keras.losses.Loss)


class Public(typing.NamedTuple):
    """A public function, class, method or property.

    Attributes:
        name: full name, such as `keras_vit.models.base.Model.save`.
        value: the function or class; of a property, the function behind it.
        owner: class of a method or property, None of others.
        is_property: whether it is read like an attribute.
        is_keras: whether it stands in for a method of a class of `_KERAS`, whose documentation holds.
    """

    name: str
    value: typing.Any
    owner: type | None = None
    is_property: bool = False
    is_keras: bool = False


def public_surface():
    """Lists everything public once, in the order in which it is met."""
    found = {}
    for value, exported in _exported():
        name = f"{value.__module__}.{value.__qualname__}"
        if name not in found:
            members = _members(value, exported) if inspect.isclass(value) else ()
            found.update((public.name, public) for public in (Public(name, value), *members))
    return list(found.values())


def _exported():
    """Yields (function or class, what is exported of it): with a class those of ours that it inherits from."""
    for package in map(importlib.import_module, PACKAGES):
        names = getattr(package, "__all__", None) or [name for name in vars(package) if not name.startswith("_")]
        for value in (getattr(package, name) for name in names):
            if inspect.isclass(value):
                yield from ((base, value) for base in value.__mro__ if base.__module__.split(".")[0] == "keras_vit")
            elif inspect.isfunction(value):
                yield value, value


def _members(owner, exported):
    bases = [base for base in _KERAS if issubclass(exported, base)]
    for name, value in vars(owner).items():
        if name.startswith("_") and name != "__init__":
            continue
        is_property = isinstance(value, (property, functools.cached_property))
        function = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        function = inspect.unwrap(function) if callable(function) else function
        # neither a class's attributes nor what a dataclass writes itself
        if not inspect.isfunction(function) or function.__module__ != owner.__module__:
            continue
        if name == "__init__" and dataclasses.is_dataclass(owner):
            continue
        is_keras = name != "__init__" and any(hasattr(base, name) for base in bases)
        yield Public(f"{owner.__module__}.{owner.__qualname__}.{name}", function, owner, is_property, is_keras)
