"""The docstrings of the public surface: arguments, results, errors and shapes are described, as the code has them."""

import ast
import dataclasses
import inspect
import re
import textwrap

import keras
from faults import assert_no_faults
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
# how a first line may begin
VERBS = frozenset(
    """
    Add Apply Average Build Call Check Classify Compare Compile Compute Convert Convolve Copy Correct Corrupt Create
    Darken Define Describe Draw Drop Export Extend Fit Hold Load Mark Measure Merge Multiply Pool Pre-train Prepend
    Raise Read Report Resize Return Save Select Serve Set Split Train Wait Write
    """.split()
)
METHODS = [public for public in FUNCTIONS if not public.is_property]


def named(publics):
    return {public.name: public for public in publics}


def test_first_line_is_a_short_imperative():
    def rule(public):
        text = (vars(public.value).get("__doc__") if inspect.isclass(public.value) else public.value.__doc__) or ""
        first = text.strip().split("\n")[0]
        is_imperative = first.partition(" ")[0] in VERBS
        return None if is_imperative and first[-1:] == "." and len(first) < 80 else f"its first line is {first!r}"

    assert_no_faults(rule, named([*CLASSES, *FUNCTIONS]))


def test_arguments_are_described():
    def rule(public):
        parameters = list(inspect.signature(public.value).parameters)[public.owner is not None :]
        found = described(public.value, "Args")
        return found != parameters and f"it has {parameters}, Args: {found}"

    assert_no_faults(rule, named(METHODS))


def test_result_is_described():
    def rule(public):
        text = inspect.getdoc(public.value)
        is_described = re.search(r"^(Returns|Yields):$", text, re.MULTILINE) or re.match(r"(Returns?|Yields?) ", text)
        returns = inspect.signature(public.value).return_annotation is not None
        return bool(is_described) != returns and f"it returns {'something' if returns else 'nothing'}"

    assert_no_faults(rule, named(METHODS))


def test_errors_are_described():
    def rule(public):
        value = public.value
        if inspect.isclass(value):
            found = [vars(value).get(name) for name in ("__init__", "__post_init__")]
            own = [function for function in found if inspect.isfunction(function)]
        else:
            own = [inspect.unwrap(value)]
        if any(map(_raises, own)):
            is_described = re.search(r"^(\w+, )*Raises:$|\b[Rr]aises\b", inspect.getdoc(value), re.MULTILINE)
            return not is_described and "it raises, without Raises:"

    assert_no_faults(rule, named([*CLASSES, *FUNCTIONS]))


def test_arguments_of_a_class_are_described():
    def rule(public):
        value = public.value
        found = [*described(value, "Args"), *described(value, "Attributes")]
        wanted = []
        if dataclasses.is_dataclass(value):
            # those that it inherits are described there
            bases = [base for base in value.__mro__[1:] if dataclasses.is_dataclass(base)]
            inherited = {field.name for base in bases for field in dataclasses.fields(base)}
            wanted = [field.name for field in dataclasses.fields(value) if field.name not in inherited]
        elif "__init__" in vars(value):
            parameters = list(inspect.signature(value.__init__).parameters)[1:]
            # further arguments of a layer are those of every layer of Keras
            wanted = [name for name in parameters if name != "kwargs"]
            found = found[: len(wanted)]
        else:
            return None
        return found != wanted and f"it has {wanted}, described are {found}"

    assert_no_faults(rule, named(CLASSES))


def test_layers_state_their_shapes():
    def rule(public):
        shapes = _section(inspect.getdoc(public.value), "Shapes")
        is_stated = "->" in shapes or shapes.strip().startswith("as ")
        return not is_stated and "Shapes: what goes in -> what comes out"

    own = [public for public in LAYERS if "call" in vars(public.value) or "__init__" in vars(public.value)]
    assert_no_faults(rule, named(own))


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
