"""The versions of Keras and TensorFlow that the tests passed with, for setup.py and for the check at import."""

import re

# package -> oldest minor version that the tests passed with, and the first that they have not been run with
TESTED = {"keras": ("3.12", "3.16"), "tensorflow": ("2.20", "2.22")}


def check_version(package: str, version: str) -> None:
    """Refuse a version of a package that was not tested.

    A newer minor version of Keras may have moved the private names of `keras_vit.compat`, and fail late or train wrong.

    Args:
        package: key of `TESTED`.
        version: the one that is installed, such as `"3.15.1"` or `"3.16.0.dev2026102704"`.

    Raises:
        ImportError: if it is none of the tested ones.
    """
    oldest, end = TESTED[package]
    if not _minor(oldest) <= _minor(version) < _minor(end):
        tested = f"{package}>={oldest},<{end}"
        raise ImportError(f"keras_vit needs {tested}; got {package} {version} (pip install '{tested}')")


def _minor(version):
    """`"3.15.1"` -> (3, 15)"""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
