"""A short error for labels outside of the classes, in place of TensorFlow's long one about the graph."""

import contextlib
import re

_OUTSIDE = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")


@contextlib.contextmanager
def labels_in_words():
    """Context that raises a short `ValueError` if a label is not a class; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        found = _OUTSIDE.search(str(error))
        if found is None:
            raise
        label, classes = map(int, found.groups())
        numbers = f"from 0 to {classes - 1}, as the model has {classes} classes" if classes > 1 else "0, the only class"
        raise ValueError(f"labels must be {numbers}; a batch has {label}") from None
