"""Argument checks for all packages; each error states the argument, what was expected and what was received."""

import difflib
import functools
import math
import numbers
import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

# values of our arguments in other libraries -> ours; words.tsv has the names of arguments
FOREIGN_VALUES = {
    "pooling": {"avg": "gap", "cls": "token"},
    "format": {"tflite": "litert"},
    "layout": {"transformers": "huggingface"},
}


def check_choice(name: str, value: T, choices: Collection[Any]) -> T:
    """Return `value` if it is one of `choices`; otherwise raise a `ValueError` that lists them."""
    if value not in choices:
        hint = suggestion(value, choices, foreign=FOREIGN_VALUES.get(name))
        raise ValueError(f"{name} must be one of {listed(choices, bool(hint))}; got {name}={quoted(value)}{hint}")
    return value


def check_instance(name: str, value: Any, kind: type | tuple[type, ...], description: str) -> Any:
    """Return `value` if it is an instance of `kind`; otherwise raise a `TypeError` that says what is expected."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {description}; got {type(value).__name__}")
    return value


def quoted(value: Any) -> str:
    """Return `repr(value)` for a message, shortened: a file can hold values of any length."""
    return shortened(repr(value), 200)


def shortened(text: str, most: int = 1500) -> str:
    """Return a text of at most about `most` characters, without its middle if it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... ({len(text)} characters) ... {text[-most // 4 :]}"


def listed(choices: Collection[Any], has_hint: bool) -> str:
    """Return the choices as text for a message.

    If there are more than 12 choices and the message has a suggestion, only the first 3 are listed.
    """
    texts = [repr(choice) for choice in choices]
    if has_hint and len(texts) > 12:
        texts = [*texts[:3], f"... ({len(texts)} in all)"]
    return ", ".join(texts)


def suggestion(
    value: Any,
    choices: Collection[Any],
    most: int = 1,
    cutoff: float = 0.75,
    foreign: Mapping[str, str] | None = None,
    spelling: Callable[[str], str] = str.lower,
) -> str:
    """Return a suggestion such as ` (did you mean 'ViT-Ti_16'?)`, or `""` if no choice is close.

    Args:
        value: the value received.
        choices: the valid values. A choice is close by its spelling or by its initials (`lr` for `learning_rate`).
        most: maximum number of suggestions.
        cutoff: minimum similarity of the spelling, in [0, 1].
        foreign: dict from names in other libraries to our names; a match gives ` (keras_vit calls it 'gap')`.
        spelling: function of a name to the form that is compared; of choices with equal forms, the last is suggested.
    """
    ours = (foreign or {}).get(value) if isinstance(value, str) else None
    if ours in choices:
        return f" (keras_vit calls it {ours!r})"
    texts = {spelling(choice): choice for choice in choices if isinstance(choice, str)}
    word = spelling(value) if isinstance(value, str) else ""
    near = difflib.get_close_matches(word, texts, most, cutoff) or [t for t in texts if _initials(t) == word][:most]
    return f" (did you mean {' or '.join(repr(texts[text]) for text in near)}?)" if near else ""


def _initials(text):
    """Map `"learning_rate"` to `"lr"`, and a single word to None."""
    words = text.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else None


def check_integer(name: str, value: Any, minimum: int = 1, maximum: float = math.inf) -> int:
    """Return `value` as an int; raise `ValueError` for booleans, fractions and values out of range."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= int(value) <= maximum:
        limit = "" if maximum == math.inf else f" and at most {maximum}"
        raise ValueError(f"{name} must be an integer of at least {minimum}{limit}; got {name}={quoted(value)}")
    return int(value)


def check_rate(name: str, value: Any) -> float:
    """Return `value` as a float in [0, 1), such as a dropout or stochastic depth rate."""
    return check_number(name, value, "number in [0, 1)", lambda number: 0.0 <= number < 1.0)


def check_positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above zero."""
    return check_number(name, value, "finite number above 0", lambda number: number > 0)


def check_epsilon(name: str, value: Any) -> float:
    """Return `value` as a float that a norm can add to a variance or deviation in float32."""
    value = check_positive(name, value)
    return check_number(name, value, "number from 1e-30 to 1", lambda number: 1e-30 <= number <= 1)


def check_number(name: str, value: Any, kind: str, is_valid: Callable[[Any], bool]) -> float:
    """Return `value` as a float; raise a `ValueError` that names `kind` unless it is finite and valid."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not is_valid(value):
        raise ValueError(f"{name} must be a {kind}; got {name}={quoted(value)}")
    return float(value)


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False; got {name}={quoted(value)}")
    return value


def check_path(name: str, value: Any) -> pathlib.Path:
    """Return `value` as a path; reject an empty string, which pathlib reads as the current folder."""
    check_instance(name, value, (str, os.PathLike), "a path")
    if not os.fspath(value):
        raise ValueError(f"{name} must be a path that is not empty ('.' is the current folder); got {name}={value!r}")
    return pathlib.Path(value)


def check_workdir(value: Any, folders: Sequence[str] = (), files: Sequence[str] = ()) -> pathlib.Path:
    """Return the folder of a training run as a path; reject a file.

    Args:
        value: the argument `workdir`.
        folders, files: names that the run writes in it; something else that has one of them is rejected.
    """
    path = check_path("workdir", value)
    if path.exists() and not path.is_dir():
        raise ValueError(f"workdir must be a folder, or not exist yet; {path} is a file")
    for name in (*folders, *files):
        kind, inside = "folder" if name in folders else "file", path / name
        if inside.exists() and not (inside.is_dir() if kind == "folder" else inside.is_file()):
            raise ValueError(f"{inside} must be the {kind} of a run, or not exist yet; it is something else: move it")
    return path


def check_pair(name: str, value: Any) -> tuple[int, int]:
    """Return `value`, an integer or a pair of integers, as a pair (height, width) of positive integers."""
    try:
        height, width = value if isinstance(value, (tuple, list)) else (value, value)
        return check_integer(name, height), check_integer(name, width)
    except ValueError:
        raise ValueError(
            f"{name} must be one positive integer or a pair (height, width) of them; got {name}={quoted(value)}"
        ) from None


def check_string(name: str, value: Any) -> str:
    """Return `value` if it is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty; got {name}={quoted(value)}")
    return value


def check_integers(name: str, value: Any) -> tuple[int, ...]:
    """Return `value`, a sequence of positive integers, as a tuple."""
    return check_sequence(name, value, "integers", check_integer)


def check_distinct(name: str, value: Any, minimum: int = 1) -> tuple[int, ...]:
    """Return `value`, one integer or several distinct ones, as a tuple."""
    values = value if isinstance(value, (tuple, list, range)) else (value,)
    values = tuple(check_integer(name, each, minimum) for each in values)
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name} must be one integer or several distinct ones; got {name}={quoted(value)}")
    return values


def check_indices(name: str, value: Any) -> tuple[int, ...]:
    """Return `value`, a sequence of integers from 0, as a tuple."""
    return check_sequence(name, value, "integers", functools.partial(check_integer, minimum=0))


def check_sequence(name: str, value: Any, kind: str, check: Callable[[str, Any], T]) -> tuple[T, ...]:
    """Return `value`, a sequence of `kind`, as a tuple of its checked items."""
    if not isinstance(value, (tuple, list, range)):
        raise ValueError(f"{name} must be a sequence of {kind}; got {name}={quoted(value)}")
    return tuple(check(f"{name}[{index}]", item) for index, item in enumerate(value))


def check_class_weight(weights: Any, classes: int | None) -> None:
    """Raise a `ValueError` if a key of `class_weight` is no number of a class; a single output has classes 0 and 1.

    None for `weights` or `classes` is not checked.
    """
    wrong = [key for key in weights or () if classes is not None and key not in range(max(classes, 2))]
    if wrong:
        raise ValueError(
            f"class_weight must have numbers of classes as keys, from 0 to {max(classes or 0, 2) - 1}; "
            f"got {', '.join(map(repr, wrong[:5]))} (class n is the n-th of the class names)"
        )


def check_divisible(
    name: str, value: tuple[int, ...], divisor_name: str, divisor: tuple[int, ...], whole: bool = True
) -> None:
    """Raise a `ValueError` unless each side of `value` is a multiple of that of `divisor`; if not `whole`, as large."""
    if any(side % step if whole else side < step for side, step in zip(value, divisor, strict=True)):
        nearest = tuple(max(1, round(side / step)) * step for side, step in zip(value, divisor, strict=True))
        raise ValueError(
            f"{name} must be {'divisible by' if whole else 'at least'} {divisor_name}; got {name}={value}, "
            f"{divisor_name}={divisor} (did you mean {nearest}?)"
        )
