"""Tested versions of Keras and TensorFlow, for setup.py and the check at import, and imports of optional packages."""

import importlib
import re
from typing import Any

# package -> oldest tested minor version, first untested minor version; Keras 3.16 was tested as keras-nightly
TESTED = {"keras": ("3.12", "3.17"), "tensorflow": ("2.20", "2.22")}


def check_version(package: str, version: str) -> None:
    """Raise an error if a package has a version that is not tested.

    A newer minor version of Keras may change the private names that `keras_vit.compat` uses. An error could then
    appear late, or training could be wrong without an error.

    Args:
        package: key of `TESTED`.
        version: the installed version, such as `"3.15.1"` or `"3.16.0.dev2026102704"`, which counts as 3.16.

    Raises:
        ImportError: if the version is not tested.
    """
    oldest, end = TESTED[package]
    if not _minor(oldest) <= _minor(version) < _minor(end):
        tested = f"{package}>={oldest},<{end}"
        raise ImportError(f"keras_vit needs {tested}; got {package} {version} (pip install '{tested}')")


def import_optional(module: str, needed: str) -> Any:
    """Import a module of an optional package.

    Args:
        module: full name of the module.
        needed: text of the error: what needs the package and how to install it, as in `"plots need x: pip install x"`.

    Raises:
        ImportError: if the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(needed) from error


def _minor(version):
    """Map `"3.15.1"` to (3, 15)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
