"""The archives of the package, built without a network from a copy of the tree, for the tests that look into them."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import setuptools

REPOSITORY = pathlib.Path(__file__).parents[1]
LEFT_BEHIND = ("__pycache__", "*.egg-info", "build", "dist", ".*", "PKG-INFO", "setup.cfg")  # by tools, and in an sdist


def tree():
    """Paths, relative to the repository, of its files: what git tracks or would add; without git, all there are."""
    inside = _git("rev-parse", "--show-toplevel")
    if inside and pathlib.Path(inside.strip()) == REPOSITORY:
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        return {pathlib.Path(name) for name in listed if name and (REPOSITORY / name).is_file()}
    found = set()
    for folder, folders, names in os.walk(REPOSITORY):
        left = shutil.ignore_patterns(*LEFT_BEHIND)(folder, folders + names)
        folders[:] = [name for name in folders if name not in left]
        found |= {pathlib.Path(folder, name).relative_to(REPOSITORY) for name in names if name not in left}
    return found


def build(folder, kind, source=None):
    """Builds an archive and returns its path.

    Args:
        folder: to work in, on its own for each call.
        kind: "sdist" or "wheel".
        source: folder to build from; by default a copy of the repository, in which no earlier build left anything.
    """
    if source is None:
        source = folder / "tree"
        for path in tree():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / path, source / path)
    words = ["-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder / "dist", source]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (folder / "dist").iterdir()
    return archive


def setup_arguments():
    """The arguments that setup.py gives to `setup`."""
    given = {}
    original, setuptools.setup = setuptools.setup, given.update
    try:
        runpy.run_path(str(REPOSITORY / "setup.py"))
    finally:
        setuptools.setup = original
    return given


def _git(*words):
    """What git prints, or nothing where there is no git or no repository."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True).stdout
