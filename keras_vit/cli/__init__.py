"""The command line: one sub-command per verb, each with one call into the package."""

import sys
import warnings

from keras_vit.cli import commands, completion, doctor, inventory, training
from keras_vit.cli.answers import answer
from keras_vit.cli.failures import guarded, one_line
from keras_vit.cli.parser import parse
from keras_vit.progress import of_command

VERBS = {
    "list": inventory.list_models,
    "info": inventory.info,
    "predict": commands.predict,
    "evaluate": commands.evaluate,
    "probe": commands.probe,
    "embed": commands.embed,
    "explain": commands.explain,
    "demo": commands.demo,
    "train": training.train,
    "pretrain": training.pretrain,
    "export": commands.export,
    "bench": commands.bench,
    "convert": commands.convert,
    "doctor": doctor.doctor,
    "completion": completion.completion,
}


def main(argv=None):
    """Run one command, such as `main(["predict", "cat.jpg", "--model", "model.keras"])`.

    Results go to standard output; load reports, progress and warnings go to standard error.

    Args:
        argv: list of the arguments after `keras-vit`; None uses those of the process.

    Returns:
        The exit code: 0; 1 if `doctor` finds that the package does not work; 2 after a user error (one line on standard
        error; `KERAS_VIT_DEBUG=1` also shows the traceback); 130 after Ctrl-C and 75 after SIGTERM during training,
        with one line that states the saved step; 141 if the reader of standard output has closed it.
    """
    return guarded(lambda: _run(parse(argv)))


def _run(args):
    def show(message, category, filename, lineno, file=None, line=None):
        print(f"keras-vit: warning: {one_line(message)}", file=sys.stderr)

    with warnings.catch_warnings(), of_command(getattr(args, "quiet", False)):
        warnings.showwarning = show
        return answer(VERBS[args.verb], args)
