"""The command line: one verb per sub-command, each one call into the package."""

import contextlib
import sys
import warnings

from keras_vit.cli import answers, demonstrations, explanations, inventory, probes, products
from keras_vit.cli.failures import guarded, one_line
from keras_vit.cli.parser import parse

VERBS = {
    "list": inventory.list_models,
    "info": inventory.info,
    "predict": answers.predict,
    "evaluate": answers.evaluate,
    "probe": probes.probe,
    "explain": explanations.explain,
    "demo": demonstrations.demo,
    "train": products.train,
    "export": products.export,
    "convert": products.convert,
}


def main(argv=None):
    """Run one command, such as `main(["predict", "cat.jpg", "--model", "model.keras"])`.

    Results go to standard output; load reports, progress and warnings to standard error.

    Args:
        argv: list of words after `keras-vit`; None takes the process's.

    Returns:
        The exit code: 0; 2 after a user's mistake (one line on standard error, with `KERAS_VIT_DEBUG=1` the
        traceback too); 130 after Ctrl-C and 75 after SIGTERM in a run, which are told in one line with the step at
        which it was saved.
    """
    return guarded(lambda: _run(parse(argv)))


def _run(args):
    with _warnings_in_one_line():
        VERBS[args.verb](args)


@contextlib.contextmanager
def _warnings_in_one_line():
    def show(message, category, filename, lineno, file=None, line=None):
        print(f"keras-vit: warning: {one_line(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
