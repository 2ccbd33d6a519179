"""Exit codes and error messages of a command. Standard library only, because it runs before Keras is imported."""

import contextlib
import os
import sys
import traceback

from ..logs import printable

DEBUG_VARIABLE = "KERAS_VIT_DEBUG"

USER_ERRORS = (ValueError, TypeError, OSError, ImportError)  # OSError: missing or existing file, no connection
_INTERRUPTED = 130  # 128 + SIGINT, as in shells
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_BACKENDS = ("tensorflow", "jax")  # modules with the same names as their packages
_SHOWN_LINES = 6


def guarded(work):
    """Call `work()` and return the exit code of the command.

    A user error prints one line on standard error and returns 2, Ctrl-C returns 130, and a closed pipe returns 141
    (`head` closes it). `KERAS_VIT_DEBUG=1` also shows the traceback. All other exceptions are raised.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # if closed, the null device takes its descriptor before another file can
            setattr(sys, name, open(os.devnull, mode))
    try:
        try:
            code = work() or 0
        except SystemExit as stop:  # from argparse, after --help or an error
            code = stop.code or 0
        sys.stdout.flush()  # raises here if the reader has closed the pipe
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except USER_ERRORS as error:
        with contextlib.suppress(OSError):  # the disk of standard error may be full, or its pipe closed
            if os.environ.get(DEBUG_VARIABLE) == "1":
                traceback.print_exc()
            print(f"keras-vit: error: {one_line(_describe(error))}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def users_mistakes(*failures):
    """Treat exceptions of these types as user errors: a full disk or a missing TPU needs no traceback."""
    try:
        yield
    except failures as error:
        raise ValueError(str(error)) from error


def one_line(text):
    """Join the lines of a message; shorten a long list and name the variable that shows all of it."""
    lines = [line.strip() for line in printable(str(text), sys.stderr).splitlines() if line.strip()]
    hidden = len(lines) - _SHOWN_LINES
    more = f"; and {hidden} more lines ({DEBUG_VARIABLE}=1 shows them)" if hidden > 0 else ""
    return "; ".join(lines[:_SHOWN_LINES]).replace(":;", ":") + more


def _describe(error):
    """Return the message of an error; for a missing backend, how to install it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in _BACKENDS:
        return f"{missing} is not installed: pip install {missing}"
    return str(error) or type(error).__name__
