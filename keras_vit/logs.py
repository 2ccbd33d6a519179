"""The logger `keras_vit`, which receives all reports of the package."""

import logging
import re
import sys

LOGGER = logging.getLogger("keras_vit")
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # of terminals and of directions


class _UntilConfigured(logging.Handler):
    """Write messages to standard error until the application configures logging."""

    def emit(self, record):
        stream = sys.stderr  # read for each message, because a notebook may replace it; it may also be None
        if not logging.getLogger().handlers and not getattr(stream, "closed", True):
            stream.write(printable(f"{self.format(record)}\n", stream))


def printable(text, stream):
    """Return a text with escapes for control characters, and for characters that the encoding of a stream lacks.

    Labels and names of files may contain both; a control character could change what a terminal shows.
    """
    text, encoding = _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text), encoding_of(stream)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def encoding_of(stream):
    """Return the name of the encoding of a stream; a stream in memory may have none."""
    return (getattr(stream, "encoding", None) or "utf-8").lower()


def set_up() -> None:
    """Show the reports of the package: level INFO, on standard error.

    An application that configures logging receives the reports through its own handlers.
    `logging.getLogger("keras_vit").setLevel(logging.WARNING)` silences them.
    """
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers:
        LOGGER.addHandler(_UntilConfigured())
