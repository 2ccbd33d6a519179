"""Contexts that silence messages and progress bars of TensorFlow and NNCF."""

import contextlib

import tensorflow as tf


@contextlib.contextmanager
def without_notes():
    """Silence TensorFlow's messages about output folders, because these folders are renamed or removed."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def without_bars():
    """Silence NNCF's progress bars, which have no switch and cause warnings in notebooks."""
    import rich  # installed with NNCF, which uses its console

    console = rich.get_console()
    before = console.quiet, console.is_jupyter
    console.quiet, console.is_jupyter = True, False
    try:
        yield
    finally:
        console.quiet, console.is_jupyter = before
