"""The types of the public surface: none is missing, mypy agrees with them, and the stub says what is there."""

import ast
import dataclasses
import importlib
import inspect
import pathlib

import pytest
from public_surface import public_surface

import keras_vit
from keras_vit import zoo

REPOSITORY = pathlib.Path(__file__).parents[1]
STUB = REPOSITORY / "keras_vit" / "__init__.pyi"
SURFACE = public_surface()
FUNCTIONS = [public for public in SURFACE if not inspect.isclass(public.value)]
# what stands in for a method of Keras has Keras's signature; a layer's call is what its users write
TYPED = [public for public in FUNCTIONS if not public.is_keras or public.name.endswith(".call")]
FIELDS = [
    (public.name, field)
    for public in SURFACE
    if dataclasses.is_dataclass(public.value) and isinstance(public.value, type)
    for field in dataclasses.fields(public.value)
]


def test_surface_is_found():
    names = {public.name for public in SURFACE}
    assert {
        "keras_vit.zoo.ViT_B16",
        "keras_vit.models.base.ImageModel.labels",
        "keras_vit.layers.mlp.MlpBlock.__init__",
        "keras_vit.config.base.Config.replace",
        "keras_vit.training.recipe.Recipe.compile",
    } <= names


@pytest.mark.parametrize("public", TYPED, ids=lambda public: public.name)
def test_every_parameter_and_result_has_a_type(public):
    signature = inspect.signature(public.value)
    parameters = list(signature.parameters.values())[public.owner is not None :]
    missing = [parameter.name for parameter in parameters if parameter.annotation is parameter.empty]
    assert missing == []
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize(("name", "field"), FIELDS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_every_field_says_what_it_holds(name, field):
    assert field.type not in (tuple, list, dict, object), f"{name}.{field.name}: of what?"


def test_mypy_finds_nothing(monkeypatch):
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(REPOSITORY)
    report, errors, status = api.run(["--cache-dir", "/dev/null"])
    assert (errors, status) == ("", 0), report


def test_package_says_that_it_is_typed():
    assert (REPOSITORY / "keras_vit" / "py.typed").is_file()


@pytest.fixture(scope="module")
def stub():
    return ast.parse(STUB.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def stub_imports(stub):
    """Name in the stub -> (module, name there)."""
    found = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names = importlib.import_module(node.module).__all__ if alias.name == "*" else [alias.asname]
                found.update((name, (node.module, name)) for name in names if name)
    return found


def test_stub_has_every_public_name(stub, stub_imports):
    variables = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    rooms = {name for name, (module, _) in stub_imports.items() if module == "keras_vit"}
    # the rooms of the core are there without being public names of the whole
    assert rooms - set(keras_vit.__all__) == {"checkpoints", "config", "layers", "models", "zoo"}
    assert set(stub_imports) | variables == set(keras_vit.__all__) | rooms | {"__version__"}


def test_stub_imports_what_the_package_has(stub_imports):
    for name, (module, there) in stub_imports.items():
        full_name = f"{module}.{there}"
        found = (
            importlib.import_module(full_name)
            if module == "keras_vit"
            else getattr(importlib.import_module(module), there)
        )
        assert getattr(keras_vit, name) is found, full_name


def test_stub_types_every_constructor(stub):
    variables = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    assert variables - {"__version__"} == set(zoo.CONSTRUCTORS)


@pytest.mark.parametrize("name", zoo.CONSTRUCTORS)
def test_stub_has_the_signature_of_the_constructor(stub, name):
    protocols = {node.name: node.body[0] for node in stub.body if isinstance(node, ast.ClassDef)}
    (protocol,) = (
        node.annotation.id for node in stub.body if isinstance(node, ast.AnnAssign) and node.target.id == name
    )
    stated = protocols[protocol]
    names = {**vars(importlib.import_module("typing")), **vars(importlib.import_module("collections.abc"))}
    names |= {**vars(keras_vit), **vars(importlib.import_module("keras_vit.typing"))}
    evaluate = lambda node: eval(ast.unparse(node), names)  # noqa: E731
    assert [argument.arg for argument in stated.args.args] == ["self"]
    assert (stated.args.vararg, stated.args.kwarg, stated.args.posonlyargs) == (None, None, [])
    parameters = [
        inspect.Parameter(
            argument.arg,
            inspect.Parameter.KEYWORD_ONLY,
            default=evaluate(default),
            annotation=evaluate(argument.annotation),
        )
        for argument, default in zip(stated.args.kwonlyargs, stated.args.kw_defaults, strict=True)
    ]
    assert inspect.Signature(parameters, return_annotation=evaluate(stated.returns)) == inspect.signature(
        zoo.CONSTRUCTORS[name]
    )
