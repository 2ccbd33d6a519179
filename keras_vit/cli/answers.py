"""What a command answers, printed as text or as JSON. Standard library only, because `keras-vit doctor` uses it."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from ..logs import encoding_of, printable


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a command.

    Attributes:
        values: what `--json` prints: an object or an array of what JSON can express.
        text: what is printed without `--json`.
        code: exit code of the command.
        then: function that is called after the answer is printed, such as one that serves a page.
    """

    values: Any
    text: str
    code: int = 0
    then: Callable[[], object] | None = None


def answer(command, args):
    """Call a command and print its `Answer`; return the exit code.

    What the command itself prints, such as Keras's progress bars, goes to standard error.

    Args:
        command: function from the parsed arguments to an `Answer`.
        args: the parsed arguments.
    """
    with contextlib.redirect_stdout(sys.stderr):
        found = command(args)
    is_json, is_unicode = getattr(args, "json", False), encoding_of(sys.stdout).startswith("utf")
    text = json.dumps(found.values, indent=2, ensure_ascii=not is_unicode) if is_json else found.text
    print(printable(text, sys.stdout), flush=True)
    if found.then is not None:
        found.then()
    return found.code
