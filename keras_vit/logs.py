"""The logger `keras_vit`, through which the package reports what it did."""

import logging
import sys

LOGGER = logging.getLogger("keras_vit")


class _UntilConfigured(logging.Handler):
    """Writes messages to standard error while the application has not configured logging itself."""

    def emit(self, record):
        if not logging.getLogger().handlers:
            sys.stderr.write(f"{self.format(record)}\n")


def set_up() -> None:
    """Make the reports of the package visible: level INFO, on standard error.

    An application that configures logging receives them through its own handlers instead, and
    `logging.getLogger("keras_vit").setLevel(logging.WARNING)` silences them.
    """
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers:
        LOGGER.addHandler(_UntilConfigured())
