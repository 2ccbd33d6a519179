"""What each choice of a ViT needs of the others, gives and breaks (choices.toml), and the conflicts that follow."""

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_vit.files import read_toml


class Choice(NamedTuple):
    """Describe a value of an argument by the names of needs.

    Args:
        argument: name of the field, with dots for nested configs; "" for a user of the model, which `value` names.
        value: a value by its name; `set` is every value but the default.
        needs: names of needs. No other choice may break them. If the table has choices that give a need, one of these
            must be made.
        gives: names of the needs of other choices that this choice meets.
        breaks: names of the needs of other choices that cannot be met beside this choice.
    """

    argument: str
    value: str
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _text(self.argument, self.value)

    def is_made(self, config: Any) -> bool:
        """Return whether a config makes the choice."""
        value = _VALUE[self.argument](config)
        return value != _default(config, self.argument) if self.value == "set" else str(value) == self.value


_TABLE = read_toml("config/choices.toml")
_NEEDS = _TABLE.pop("needs")  # need -> [what is needed, what a choice that breaks it does]
_CHOICES = [
    Choice(argument, value, **{effect: tuple(needs.split()) for effect, needs in effects.items()})
    for argument, values in _TABLE.items()
    for value, effects in values.items()
]
_VALUE = {argument: operator.attrgetter(argument) for argument in _TABLE}
_GIVEN = {need for choice in _CHOICES for need in choice.gives}


def values_of(argument: str, **effects: str) -> list[str]:
    """Return the names of the values of an argument, in the order of the table.

    Args:
        argument: name of the field.
        **effects: a need by `needs`, `gives` or `breaks`; only the values with this effect are returned.
    """
    choices = [choice for choice in _CHOICES if choice.argument == argument]
    return [one.value for one in choices if all(need in getattr(one, name) for name, need in effects.items())]


def conflicts(config: Any, *users: Choice) -> Iterator[str]:
    """Yield what the choices of a config need and do not get, with ways out; names of fields are in braces.

    Args:
        config: a `ViTConfig`.
        *users: what uses the model and needs something of it.
    """
    made = [*users, *(choice for choice in _CHOICES if choice.is_made(config))]
    given = {need for choice in made for need in choice.gives}
    for choice in made:
        for need in choice.needs:
            breaker = next((other for other in made if need in other.breaks and other is not choice), None)
            if breaker is not None:
                but = f", but {breaker} {_NEEDS[need][1]}"
                ways = [(breaker.argument, _without("breaks", need, breaker, config))]
            elif need in _GIVEN - given:
                but, ways = "", [(argument, values_of(argument, gives=need)) for argument in _TABLE]
            else:
                continue
            ways.append((choice.argument, _without("needs", need, choice, config)[:1]))
            use = ", or ".join(_text(argument, *values) for argument, values in ways if values)
            yield f"{choice} needs {_NEEDS[need][0]}{but} (use {use})"


def _default(config, argument):
    return _VALUE[argument](type(config))  # a dataclass has the defaults of its fields as attributes


def _without(effect, need, choice, config):
    """Return the values of the choice's argument that do not have this effect on a need."""
    if choice.value == "set":
        return [_default(config, choice.argument)]
    effective = values_of(choice.argument, **{effect: need})
    return [value for value in values_of(choice.argument) if value not in effective]


def _text(argument, *values):
    """Return `{argument}='value' or 'value'`."""
    if not argument or values == ("set",):
        return f"{{{argument}}}" if argument else values[0]
    *first, last = (value if value in ("None", "True", "False") else repr(value) for value in values)
    return f"{{{argument}}}={', '.join(first)}{' or ' if first else ''}{last}"
