"""Contexts in which TensorFlow and NNCF do not tell of their work, which would stand in notebooks and on terminals."""

import contextlib

import tensorflow as tf


@contextlib.contextmanager
def without_notes():
    """TensorFlow does not note where it writes: that folder gets another name in the end, or goes."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def without_bars():
    """NNCF draws no progress bars, for which it has no switch; a notebook would get a warning each."""
    import rich  # comes with NNCF, which draws on this console

    console = rich.get_console()
    before = console.quiet, console.is_jupyter
    console.quiet, console.is_jupyter = True, False
    try:
        yield
    finally:
        console.quiet, console.is_jupyter = before
