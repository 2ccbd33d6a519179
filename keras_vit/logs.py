"""The logger `keras_vit`, which receives all reports of the package."""

import contextlib
import logging
import sys

LOGGER = logging.getLogger("keras_vit")


class _UntilConfigured(logging.StreamHandler):
    """Write messages to standard error until the application configures logging."""

    def emit(self, record):
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # the current one, which a notebook or a test may have replaced
            with contextlib.suppress(ValueError):  # logging writes its own errors to the stream, which may be closed
                super().emit(record)


def set_up() -> None:
    """Show the reports of the package: level INFO, on standard error.

    An application that configures logging receives the reports through its own handlers.
    `logging.getLogger("keras_vit").setLevel(logging.WARNING)` silences them.
    """
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers:
        LOGGER.addHandler(_UntilConfigured())
