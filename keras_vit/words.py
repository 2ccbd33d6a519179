"""The words of other libraries (words.tsv), and what to write in keras_vit for them."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit import checks
from keras_vit.files import read_table


@functools.cache
def words_of(kind: str) -> dict[str, dict[str, str]]:
    """Return the rows of words.tsv of one kind by their words.

    Args:
        kind: `argument`; `name` of a function or class; or `method`, also an attribute, of a model.
    """
    return {row["word"]: row for row in read_table("words.tsv") if row["kind"] == kind}


def answer(kind: str, word: str) -> str:
    """Return an addition to an error that shows the line to write, `""` for an unknown word.

    Args:
        kind: as in `words_of`.
        word: the word received.
    """
    row = words_of(kind).get(word)
    return f" ({row['library']} has it; in keras_vit, write: {row['line']})" if row else ""


def check_arguments(function: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise a `TypeError` for the first argument that a function does not have.

    Args:
        function: name of the function in the error.
        given: dict from the names of the arguments received to their values.
        known: names of its arguments.
    """
    for name, value in given.items():
        if name not in known:
            hint = answer_argument(name, known, value)
            raise TypeError(
                f"{function} got an unexpected keyword argument {name!r}{hint}; the arguments are {', '.join(known)}"
            )


def answer_argument(name: str, known: Collection[str], value: Any = None) -> str:
    """Return an addition to an error about an unknown argument, `""` without one.

    Args:
        name: name of the argument.
        known: names of the arguments that could be meant.
        value: its value, for words that have another meaning with one value.
    """
    rows = words_of("argument")
    row = rows.get(f"{name}={value!r}") or rows.get(name)
    if row is None or "ours" not in row:
        return answer("argument", name) or checks.suggestion(name, known)
    forms = {form.partition("=")[0]: form for form in row["ours"].split(" | ")}
    ours = next((ours for ours in forms if ours in known), None)
    if ours is not None:
        return f" (keras_vit calls it {ours!r}: {forms[ours]})"
    line = f": {row['line']}" if "line" in row else ""
    return f" (keras_vit calls it {next(iter(forms))!r}, which is no argument here{line})"
