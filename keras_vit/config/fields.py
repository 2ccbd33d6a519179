"""What a field of a config is: how it is checked, what shows its value, who may change it.

A config declares this beside the field: `gated: bool = field(default=False, metadata=about(defines=True))`. The lists
of field names in the package are queries over these declarations.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What a field is.

    Attributes:
        default: its default value, None without one.
        required: whether it has no default value.
        is_part: whether it is a config with fields of its own.
        check: function of the name and the value that returns the value, or raises a `ValueError`; None uses the check
            of `base.ARGUMENTS` for the name, or that of the type.
        defines: whether the field belongs to the architecture of a published variant. Two variants with other values
            are different models.
        shown: regular expression of variables, in the form of `names.rules.Rule.ours` (`block_0/...`). If a file has an
            array for one of them, the field is True, else False.
        axis: with `shown`, the field is the size of the variable along this axis instead, or None.
        unseen: whether no array shows the field, so that weights files state it.
        usual: whether weights files leave it out if it has its default value.
        close: whether another value gives nearly the same outputs, so that it is accepted with a warning.
        resized: whether another value is handled by resizing tables, which a report lists.
        of_head: whether it may differ from that of the file if the head is new.
        changeable: whether a user may change what a published family sets.
        runtime: whether it is about how a model runs, so that no file states it.
    """

    default: Any = None
    required: bool = False
    is_part: bool = False
    check: Callable[[str, Any], Any] | None = None
    defines: bool = False
    shown: str | None = None
    axis: int | slice | None = None
    unseen: bool = False
    usual: bool = False
    close: bool = False
    resized: bool = False
    of_head: bool = False
    changeable: bool = False
    runtime: bool = False


def about(**declared: Any) -> dict[str, About]:
    """Return the metadata of a dataclass field.

    Args:
        **declared: attributes of `About`.
    """
    return {"about": About(**declared)}


def fields_of(config_class: Any) -> dict[str, About]:
    """Return the declaration of each field of a config; names of fields of nested configs have a dot.

    Args:
        config_class: class of the config.
    """
    return _fields_of(config_class)


@functools.cache
def names_of(config_class: Any, **wanted: bool) -> tuple[str, ...]:
    """Return the names of the fields of a config that are declared so, in order.

    Args:
        config_class: class of the config.
        **wanted: attributes of `About` and their values.
    """
    fields = fields_of(config_class).items()
    return tuple(name for name, declared in fields if all(getattr(declared, key) == wanted[key] for key in wanted))


@functools.cache
def _fields_of(config_class):
    found, types = {}, typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        required, declared = field.default is dataclasses.MISSING, field.metadata.get("about", About())
        parts = [
            one for one in (types[field.name], *typing.get_args(types[field.name])) if dataclasses.is_dataclass(one)
        ]
        of_dataclass = {"default": None if required else field.default, "required": required, "is_part": bool(parts)}
        found[field.name] = dataclasses.replace(declared, **of_dataclass)
        for part in parts:
            found |= {f"{field.name}.{name}": declared for name, declared in fields_of(part).items()}
    return found
