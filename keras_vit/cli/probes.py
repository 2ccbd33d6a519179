"""`keras-vit probe`: few-shot accuracy of a model's features."""

import contextlib
import json
import sys

import keras_vit
from keras_vit import files
from keras_vit.analysis import plots
from keras_vit.cli.models import open_model
from keras_vit.cli.outputs import check_drawing, check_output
from keras_vit.cli.sources import check_sources, open_sources

_SEED = 0  # for --hold-out


def probe(args):
    """Print the few-shot accuracy, and write it as a table and as a plot."""
    check_sources(args)
    check_output("--table", args.table, (".csv",))
    check_drawing("--plot", args.plot)
    train, test = open_sources(args, _SEED)
    if test is None:
        raise ValueError(
            "--validation, --hold-out or --arrays with x_test and y_test must be given: images to measure on"
        )
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):  # Keras's progress bar
        result = keras_vit.evaluation.few_shot(
            model,
            train,
            test,
            shots=args.shots,
            seeds=range(args.seeds),
            layer=args.layer,
            batch_size=args.batch_size,
            verbose=sys.stderr.isatty(),
            **({} if args.l2 is None else {"l2": args.l2}),
        )
    if args.table is not None:
        result.write_csv(args.table)
    print(json.dumps(_values(result), indent=2, ensure_ascii=False) if args.json else result)
    if args.plot is not None:
        files.replace_file(args.plot, plots.few_shot_curves({model.config.name: result}).savefig)


def _values(result):
    return {
        "accuracy": result.accuracy,
        "mean": result.mean,
        "std": result.std,
        "seeds": result.seeds,
        "images": result.count,
        "classes": result.class_names,
        "layer": result.layer,
        "l2": result.l2,
    }
