"""The console script `keras-vit`: handles `--help` and argument errors, then calls `keras_vit.cli`.

It is outside the package because importing the package imports Keras and TensorFlow. That takes seconds, prints
start-up messages that no log level suppresses, and fails if TensorFlow is not installed.
"""

import contextlib
import importlib
import importlib.util
import os
import pathlib
import sys
import types

_ALONE = "_keras_vit"
_WITHOUT_KERAS = ("completion", "doctor")  # the commands of the files with these names


def main(argv=None):
    """Run one command and return its exit code, see `keras_vit.cli.main`."""
    return _load("failures").guarded(lambda: _run(argv))


def _run(argv):
    args = _load("parser").parse(argv)
    if args.verb in _WITHOUT_KERAS:
        return _load("answers").answer(getattr(_load(args.verb), args.verb), args)
    with quiet_start():
        from keras_vit import cli
    return cli.main(argv)


@contextlib.contextmanager
def quiet_start():
    """Import TensorFlow in this context without its start-up messages about oneDNN and CUDA, which are harmless.

    They are shown if the user asks for messages: by another `TF_CPP_MIN_LOG_LEVEL` than 3, or by `KERAS_VIT_DEBUG=1`.
    """
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if level != "3" or os.environ.get("KERAS_VIT_DEBUG") == "1":
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)  # of the process: TensorFlow 2.21 logs before it reads its log level
        yield
        if "tensorflow" in sys.modules:
            # The first search for a GPU logs an error if there is none.
            sys.modules["tensorflow"].config.list_physical_devices()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _load(name):
    """Load a module of `keras_vit/cli/` that needs only the standard library, without the package around it."""
    folder = pathlib.Path(importlib.util.find_spec("keras_vit").origin).parent
    for package, path in ((_ALONE, folder), (f"{_ALONE}.cli", folder / "cli")):
        # a package of these files without their __init__.py
        sys.modules.setdefault(package, types.ModuleType(package)).__path__ = [str(path)]
    return importlib.import_module(f"{_ALONE}.cli.{name}")


if __name__ == "__main__":
    sys.exit(main())
