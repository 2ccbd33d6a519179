"""The docstrings of the public surface: arguments, results, errors and shapes are described, as the code has them."""

import ast
import dataclasses
import inspect
import re
import textwrap

import keras
import pytest
from public_surface import public_surface

SURFACE = public_surface()
CLASSES = [public for public in SURFACE if inspect.isclass(public.value) and not public.value.__name__.startswith("_")]
LAYERS = [public for public in CLASSES if issubclass(public.value, (keras.layers.Layer, keras.Model))]
# classes describe the arguments of their __init__; what stands in for a method of Keras is described there
FUNCTIONS = [
    public
    for public in SURFACE
    if not (inspect.isclass(public.value) or public.is_keras or public.name.endswith(".__init__"))
]
METHODS = [public for public in FUNCTIONS if not public.is_property]
name_of = lambda public: public.name  # noqa: E731


@pytest.mark.parametrize("public", [*CLASSES, *FUNCTIONS], ids=name_of)
def test_first_line_is_a_sentence(public):
    first = (vars(public.value).get("__doc__") or public.value.__doc__ or "").strip().split("\n\n")[0]
    assert len(first) > 10, "there must be a docstring"
    assert first[0].isupper() or first[0] in "`{0123456789" or first.startswith(("float", "int")), first
    assert first.rstrip()[-1] in ".:", first


@pytest.mark.parametrize("public", METHODS, ids=name_of)
def test_arguments_are_described(public):
    parameters = list(inspect.signature(public.value).parameters)[public.owner is not None :]
    assert described(public.value, "Args") == parameters


@pytest.mark.parametrize("public", METHODS, ids=name_of)
def test_result_is_described(public):
    text = inspect.getdoc(public.value)
    is_described = re.search(r"^(Returns|Yields):$", text, re.MULTILINE) or re.match(r"(Returns?|Yields?) ", text)
    returns = inspect.signature(public.value).return_annotation is not None
    assert bool(is_described) == returns


@pytest.mark.parametrize("public", [*CLASSES, *FUNCTIONS], ids=name_of)
def test_errors_are_described(public):
    value = public.value
    if inspect.isclass(value):
        own = [
            value.__dict__[name] for name in ("__init__", "__post_init__") if inspect.isfunction(vars(value).get(name))
        ]
    else:
        own = [inspect.unwrap(value)]
    if any(map(_raises, own)):
        assert re.search(r"^(\w+, )*Raises:$|\b[Rr]aises\b", inspect.getdoc(value), re.MULTILINE)


@pytest.mark.parametrize("public", CLASSES, ids=name_of)
def test_arguments_of_a_class_are_described(public):
    value = public.value
    found = [*described(value, "Args"), *described(value, "Attributes")]
    if dataclasses.is_dataclass(value):
        # those that it inherits are described there
        inherited = {
            field.name
            for base in value.__mro__[1:]
            if dataclasses.is_dataclass(base)
            for field in dataclasses.fields(base)
        }
        fields = [field.name for field in dataclasses.fields(value) if field.name not in inherited]
        assert found == fields
    elif "__init__" in vars(value):
        parameters = list(inspect.signature(value.__init__).parameters)[1:]
        # further arguments of a layer are those of every layer of Keras
        wanted = [name for name in parameters if name != "kwargs"]
        assert found[: len(wanted)] == wanted


@pytest.mark.parametrize(
    "public",
    [public for public in LAYERS if "call" in vars(public.value) or "__init__" in vars(public.value)],
    ids=name_of,
)
def test_layers_state_their_shapes(public):
    shapes = _section(inspect.getdoc(public.value), "Shapes")
    assert "->" in shapes or shapes.strip().startswith("as "), "Shapes: what goes in -> what comes out"


def test_entries_are_found():
    def documented(a, b, *c, **d):
        """Does it.

        Args:
            a, b: both,
                at length: here.
            *c, **d: the rest.

        Returns:
            e: nothing.
        """

    assert described(documented, "Args") == ["a", "b", "c", "d"]
    assert described(documented, "Returns") == ["e"]
    assert described(documented, "Raises") == []


def described(value, title):
    """Returns the names in a section of a docstring, in order; `a, b: text` are two."""
    entries = re.findall(r"^    ([*\w][*\w, ]*):(?: |$)", _section(inspect.getdoc(value) or "", title), re.MULTILINE)
    return [name.strip().lstrip("*") for entry in entries for name in entry.split(",")]


def _section(text, title):
    found = re.search(rf"^{title}:\n((?:    .*\n|\n(?=    ))*)", text + "\n", re.MULTILINE)
    return found[1] if found else ""


def _raises(function):
    """Whether a function raises, or calls a check that does, outside of the functions in it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError):
        return False
    for node in _walk(tree):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called.lstrip("_").startswith("check_"):
                return True
    return False


def _walk(tree):
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            yield node
            yield from _walk(node)
