"""Progress bars, which are hidden unless the caller or the command line shows them."""

import contextlib
import contextvars
import logging
import os
import sys

import keras

from keras_vit.logs import LOGGER

_is_shown = contextvars.ContextVar("_is_shown", default=False)


@contextlib.contextmanager
def of_command(quiet):
    """Show progress bars if standard error is a terminal; `quiet` hides them, and the reports below WARNING."""
    token, level = _is_shown.set(sys.stderr.isatty() and not quiet), LOGGER.level
    if quiet:
        LOGGER.setLevel(logging.WARNING)
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        yield
    finally:
        _is_shown.reset(token)
        LOGGER.setLevel(level)


def progress_bar(total, unit, verbose=False):
    """Return a `keras.utils.Progbar`, which is hidden unless `verbose` or in a command.

    Args:
        total: number of units, None if it is unknown; a command hides the bar of a single one.
        unit: name of a unit.
        verbose: whether the caller asks for the bar.
    """
    return keras.utils.Progbar(total, unit_name=unit, verbose=int(verbose or (_is_shown.get() and total != 1)))


def progress(items, total, unit, verbose=False):
    """Yield the items and advance a bar, see `progress_bar`; it ends its line after an error as well."""
    bar, count = progress_bar(total, unit, verbose), 0
    try:
        for count, item in enumerate(items, start=1):
            bar.update(count)
            yield item
    finally:
        if count and count != total:
            bar.update(count, finalize=True)
