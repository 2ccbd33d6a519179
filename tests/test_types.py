"""The types of the public surface: none is missing, and the stub says what is there; .ci/run calls mypy."""

import ast
import dataclasses
import inspect
import pathlib
import runpy

import pytest
from faults import assert_no_faults
from public_surface import public_surface

import keras_vit
from keras_vit import zoo
from keras_vit.variants import VARIANTS

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
        "keras_vit.layers.transformer_block.MlpBlock.__init__",
        "keras_vit.config.base.Config.replace",
        "keras_vit.training.recipe.Recipe.compile",
    } <= names


def test_every_parameter_and_result_has_a_type():
    def rule(public):
        signature = inspect.signature(public.value)
        parameters = list(signature.parameters.values())[public.owner is not None :]
        missing = [parameter.name for parameter in parameters if parameter.annotation is parameter.empty]
        missing += ["its result"] * (signature.return_annotation is signature.empty)
        return missing and f"no type of {', '.join(missing)}"

    assert_no_faults(rule, {public.name: public for public in TYPED})


def test_every_field_says_what_it_holds():
    def rule(field):
        return field.type in (tuple, list, dict, object) and f"{field.type.__name__} of what?"

    assert_no_faults(rule, {f"{name}.{field.name}": field for name, field in FIELDS})


def test_package_says_that_it_is_typed():
    assert (REPOSITORY / "keras_vit" / "py.typed").is_file()


@pytest.fixture(scope="module")
def stub():
    """Everything in the stub, which runs like any other source."""
    return runpy.run_path(str(STUB))


def test_stub_is_what_its_generator_writes():
    generated = runpy.run_path(str(REPOSITORY / "docs" / "generate" / "stub.py"))["text"]()
    assert STUB.read_text(encoding="utf-8") == generated, "run python docs/generate/stub.py"


def test_stub_has_every_public_name(stub):
    imports = [node for node in ast.parse(STUB.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    exported = {alias.asname for node in imports for alias in node.names if alias.asname}  # as a stub exports
    rooms = {alias.name for node in imports if node.module == "keras_vit" for alias in node.names}
    constructors = set(stub["__annotations__"]) - {"__version__"}
    assert constructors == set(zoo.CONSTRUCTORS)
    assert exported | constructors | set(keras_vit.layers.__all__) == set(keras_vit.__all__) | rooms
    # the rooms of the core are there without being public names of the whole
    assert rooms - set(keras_vit.__all__) == {"checkpoints", "config", "layers", "models", "zoo"}
    for name in exported | set(keras_vit.layers.__all__):
        assert stub[name] is getattr(keras_vit, name), name


def test_stub_has_the_signatures_of_the_constructors(stub):
    def rule(name):
        stated = inspect.signature(stub["__annotations__"][name].__call__)
        without_self = stated.replace(parameters=list(stated.parameters.values())[1:])
        own = inspect.signature(getattr(keras_vit, name))
        if VARIANTS[zoo.CONSTRUCTORS[name]].family:  # one protocol for all, whose defaults are `...`
            parameters = [parameter.replace(default=...) for parameter in own.parameters.values()]
            own = own.replace(parameters=parameters)
        return without_self != own and f"it has {own}, the stub {without_self}"

    assert_no_faults(rule, {name: name for name in zoo.CONSTRUCTORS})
