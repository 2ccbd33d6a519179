"""Checks of a command's output files."""

import pathlib

from keras_vit import checks
from keras_vit.analysis.plots import import_figure

_DRAWINGS = (".png", ".jpg", ".pdf", ".svg")


def check_output(option, path, suffixes):
    """Raise before any computation if the ending or the folder of a file is wrong; None means no file.

    Args:
        option: option of the path, such as `--plot`.
        path: of the file.
        suffixes: allowed endings.
    """
    if path is None:
        return
    path = pathlib.Path(path)
    checks.check_choice(f"the ending of {option}", path.suffix.lower(), suffixes)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option} must be in a folder that exists; got {str(path)!r}")


def check_drawing(option, path):
    """Call `check_output` for a figure; also raise if matplotlib, which draws it, is missing."""
    check_output(option, path, _DRAWINGS)
    if path is not None:
        import_figure()
