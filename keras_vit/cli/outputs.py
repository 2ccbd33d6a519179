"""The files that a command is to write."""

import pathlib

from keras_vit import checks
from keras_vit.analysis.plots.canvas import import_figure

_DRAWINGS = (".png", ".jpg", ".pdf", ".svg")


def check_output(option, path, suffixes):
    """Raise where the ending or the folder of a file is wrong, before anything is computed; None is no file.

    Args:
        option: what the path was given by, such as `--plot`.
        path: of the file.
        suffixes: endings that it may have.
    """
    if path is None:
        return
    path = pathlib.Path(path)
    checks.check_choice(f"the ending of {option}", path.suffix.lower(), suffixes)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option} must be in a folder that exists; got {str(path)!r}")


def check_drawing(option, path):
    """`check_output` of a figure; raises as well where matplotlib, which draws it, is missing."""
    check_output(option, path, _DRAWINGS)
    if path is not None:
        import_figure()
