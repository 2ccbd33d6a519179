"""What a command says and returns when it cannot be done. Standard library only, for it runs before Keras."""

import contextlib
import os
import sys
import traceback

DEBUG_VARIABLE = "KERAS_VIT_DEBUG"

_USER_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
)  # OSError: no such file, exists already, no connection
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_BACKENDS = ("tensorflow", "jax")  # modules, which are called as their packages
_SHOWN_LINES = 6


def guarded(work):
    """Call `work()` and returns the exit code of the command.

    A user's mistake ends in one line on standard error and 2, Ctrl-C in 130, a reader that leaves, such as `head`, in
    141. `KERAS_VIT_DEBUG=1` shows the traceback as well. Whatever is no user's mistake is raised.
    """
    _open_closed_streams()
    try:
        code = _code_of(work)
        sys.stdout.flush()  # a reader that has left shows here at the latest
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except _USER_ERRORS as error:
        with contextlib.suppress(OSError):  # standard error may have no room or no reader
            if os.environ.get(DEBUG_VARIABLE) == "1":
                traceback.print_exc()
            print(f"keras-vit: error: {one_line(describe(error))}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def users_mistakes(*failures):
    """Count exceptions of these types as a user's mistake: a full disk or an absent TPU needs no traceback."""
    try:
        yield
    except failures as error:
        raise ValueError(str(error)) from error


def describe(error):
    """The message of an error; where a backend is missing, how to install it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in _BACKENDS:
        return f"{missing} is not installed: pip install {missing}"
    return str(error) or type(error).__name__


def one_line(text):
    """Join the lines of a message; a long list is cut, and the variable that shows it whole is named."""
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    hidden = len(lines) - _SHOWN_LINES
    more = f"; and {hidden} lines more ({DEBUG_VARIABLE}=1 shows them)" if hidden > 0 else ""
    return "; ".join(lines[:_SHOWN_LINES]).replace(":;", ":") + more


def _open_closed_streams():
    """Standard streams that the caller has closed become the null device, before another file takes their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # which takes the lowest number that is free


def _code_of(work):
    try:
        return work() or 0
    except SystemExit as stop:  # argparse, after --help or a message of its own
        return stop.code or 0
