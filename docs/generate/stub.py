"""The types of the package's public names: `python docs/generate/stub.py` writes keras_vit/__init__.pyi.

They come from keras_vit/__init__.py and from the signatures of the constructors, which the package makes from tables.
"""

import ast
import inspect
import itertools
import operator
import pathlib
import re
import typing

import keras_vit
from keras_vit import zoo
from keras_vit.variants import VARIANTS

PACKAGE = pathlib.Path(keras_vit.__file__).parent
STUB = PACKAGE / "__init__.pyi"

_CORE = ("checkpoints", "config", "layers", "models", "zoo")  # packages that importing keras_vit imports
_TEXT = '''"""Public names of `keras_vit` for type checkers; docs/generate/stub.py writes this file."""

{standard}

{imports}

__version__: str

{protocols}

{constructors}
'''
_PROTOCOL = '''class {name}(Protocol):
    def __call__(
        self,
        *,
{parameters}
    ) -> {result}:
        """Build the model; see `help(keras_vit.{constructor})`."""'''


def text():
    """Return the text of the stub."""
    protocols, constructors, standard = {}, [], {("typing", "Protocol")}
    for constructor in zoo.CONSTRUCTORS:
        signature = inspect.signature(getattr(keras_vit, constructor))
        has_family = VARIANTS[zoo.CONSTRUCTORS[constructor]].family is not None
        parameters = [_parameter(parameter, has_family) for parameter in signature.parameters.values()]
        key = "\n".join(f"        {parameter}," for parameter in parameters), _name(signature.return_annotation)
        name = protocols.setdefault(key, f"_{constructor}")
        constructors.append(f"{constructor}: {name}")
        standard |= {place for parameter in signature.parameters.values() for place in _places(parameter.annotation)}
    return _TEXT.format(
        standard="\n".join(
            f"from {module} import {', '.join(name for _, name in names)}"
            for module, names in itertools.groupby(sorted(standard), operator.itemgetter(0))
        ),
        imports="\n".join(_imports()),
        protocols="\n\n".join(
            _PROTOCOL.format(name=name, parameters=parameters, result=result, constructor=name[1:])
            for (parameters, result), name in protocols.items()
        ),
        constructors="\n".join(constructors),
    )


def _imports():
    """Yield the imports of __init__.py and of what it imports on first use, in the order of ruff."""
    places = {("keras_vit", name) for name in (*_CORE, *keras_vit._PACKAGES)}
    places |= {(module, name) for name, module in keras_vit._FUNCTIONS.items()}
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            places |= {(node.module, alias.name) for alias in node.names if alias.asname is None}
    for module, name in sorted(places, key=lambda place: (place[0], *_order(place[1]))):
        noqa = "  # noqa: F403 - its __all__ lists the public layers"
        yield f"from {module} import {name}" + (noqa if name == "*" else f" as {name}")


def _order(name):
    return not name.isupper(), not name[0].isupper(), name.lower()


def _parameter(parameter, has_family):
    """Return a parameter as in the source; the defaults of a family depend on the variant."""
    default = "..." if has_family else repr(parameter.default).replace("'", '"')
    return f"{parameter.name}: {_name(parameter.annotation)} = {default}"


def _name(annotation):
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", _whole_name(annotation)).replace("'", '"')


def _whole_name(annotation):
    """Return an annotation with the modules of its types; alternatives are joined by |."""
    if typing.get_origin(annotation) is typing.Union:
        return " | ".join(map(_whole_name, typing.get_args(annotation)))
    is_literal = typing.get_origin(annotation) is typing.Literal
    return repr(annotation) if is_literal else inspect.formatannotation(annotation)


def _places(annotation):
    """Return (module, name) of the types of other packages in an annotation."""
    found = re.findall(r"\b((?:\w+\.)*\w+)\.(\w+)", _whole_name(annotation))
    return {(module, name) for module, name in found if not module.startswith("keras_vit")}


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")
