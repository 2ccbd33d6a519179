"""Tested versions of Keras and TensorFlow, and imports and installation of optional packages. Standard library only."""

import importlib
import importlib.metadata
import json
import pathlib
import re
import shlex
import urllib.parse
from typing import Any

DISTRIBUTION = "keras-vit-models"
_CHECKOUT = pathlib.Path(__file__).parents[1]  # if it has a setup.py

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


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package from where the package is.

    This is the checkout, if the package is used from one; else the address that the package was installed from; else
    an index.

    Args:
        extra: name of the extra, such as `"jax"`; `""` installs the package alone.
    """
    extra = f"[{extra}]" if extra else ""
    try:
        stated = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        stated = None
    source = json.loads(stated or "{}")  # as in https://packaging.python.org/en/latest/specifications/direct-url
    url, vcs = source.get("url"), source.get("vcs_info")
    is_checkout = (_CHECKOUT / "setup.py").is_file()
    if is_checkout or source.get("dir_info", {}).get("editable"):
        folder = _CHECKOUT if is_checkout else urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        return f"pip install -e {shlex.quote(f'{folder}{extra}')}"
    if url is None:
        return f"pip install '{DISTRIBUTION}{extra}'"
    url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    url += f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
    return f"pip install '{DISTRIBUTION}{extra} @ {url}'"


def _minor(version):
    """Map `"3.15.1"` to (3, 15)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
