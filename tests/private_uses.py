"""The private names of Keras and TensorFlow that the sources of keras_vit use."""

import ast
import functools
import importlib
import inspect
import pathlib
import pkgutil
import re

import keras

import keras_vit
from keras_vit.compat.jax_fit import JaxFit

ROOT = pathlib.Path(keras_vit.__file__).parent
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_MODULES = ("keras.src", "tensorflow.python", "tf.__internal__", "tensorflow.__internal__")
# Gradio takes long to import, and this module subclasses nothing of Keras.
_WITHOUT_KERAS = ("keras_vit.demo.page",)
# Attributes of ours, read from outside of their class, that Keras has for something else.
OURS = {"_call_heads", "_config", "_conv", "_preprocessing_source"}


def private_names():
    """Names as in `private_names.TABLE`: attributes, methods and strings by name, imports by path."""
    trees = [ast.parse(path.read_text()) for path in ROOT.rglob("*.py") if path.name != "private_names.py"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {name for node in nodes for name in _names(node)}
    own = {name for tree in trees for name in _defined(tree)}
    dotted = {path for node in nodes for path in _paths(node)}
    foreign = (used - own) | (_of_others(nodes) - OURS)
    return (foreign & _vocabulary()) | _overridden() | dotted


def _names(node):
    """Attributes and strings that are an identifier with one leading underscore."""
    found = getattr(node, "attr", None) if isinstance(node, ast.Attribute) else getattr(node, "value", None)
    if isinstance(found, str) and _PRIVATE.fullmatch(found):
        yield found


def _of_others(nodes):
    """Attributes that are read from another object than `self`."""
    own = ("self", "cls")
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and _PRIVATE.fullmatch(node.attr))
    return {node.attr for node in attributes if not (isinstance(node.value, ast.Name) and node.value.id in own)}


def _defined(tree):
    """Private names that a module defines, at any depth; attributes of `self` among them."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _paths(node):
    """Paths into private modules, in imports, chains of attributes and strings."""
    if isinstance(node, ast.ImportFrom) and node.module:
        paths = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
        paths = [node.value]
    elif isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
        paths = [ast.unparse(node)]
    else:
        paths = []
    paths = [path for path in paths if path.startswith(tuple(f"{module}." for module in _MODULES))]
    return [path.rpartition(".")[2] for path in paths if path != "tf.__internal__.distribute"]


@functools.cache
def _vocabulary():
    """Private names of the classes of Keras and of tf.distribute."""
    folders = [pathlib.Path(keras.__file__).parent / "src"]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        folders.append(pathlib.Path(tf.__file__).parent / "python" / "distribute")
    paths = (path for folder in folders for path in folder.rglob("*.py") if not path.name.endswith("_test.py"))
    return {name for path in paths for name in _defined_in(path.read_text())}


def _defined_in(source):
    return re.findall(r"(?:def|self\.|^    )\s*(_[A-Za-z]\w*)\s*(?=\(|=[^=])", source, re.MULTILINE)


def _overridden():
    """Private names of Keras's classes that their subclasses in keras_vit define too."""
    found = _of_class(JaxFit) & _vocabulary()  # no base of a model on another backend
    for info in pkgutil.walk_packages([str(ROOT)], "keras_vit."):
        module = importlib.import_module(info.name) if info.name not in _WITHOUT_KERAS else None
        for kind in filter(inspect.isclass, vars(module).values() if module else ()):
            own = (base for base in kind.__mro__ if base.__module__.startswith("keras_vit."))
            found |= {name for base in own for name in _of_class(base)} & _inherited(kind)
    return found


@functools.cache
def _inherited(kind):
    names = set()
    for base in kind.__mro__:
        if base.__module__.startswith(("keras.", "tensorflow.")):
            names |= set(vars(base)) | _of_class(base)
    return names


@functools.cache
def _of_class(kind):
    return set(_defined_in(inspect.getsource(kind)))
