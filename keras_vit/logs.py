"""The logger `keras_vit`, which receives all reports of the package."""

import logging
import sys

LOGGER = logging.getLogger("keras_vit")


class _UntilConfigured(logging.Handler):
    """Write messages to standard error until the application configures logging."""

    def emit(self, record):
        stream = sys.stderr  # read for each message, because a notebook may replace it; it may also be None
        if not logging.getLogger().handlers and not getattr(stream, "closed", True):
            stream.write(f"{self.format(record)}\n")


def set_up() -> None:
    """Show the reports of the package: level INFO, on standard error.

    An application that configures logging receives the reports through its own handlers.
    `logging.getLogger("keras_vit").setLevel(logging.WARNING)` silences them.
    """
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers:
        LOGGER.addHandler(_UntilConfigured())
