"""`keras-vit probe`: how good the features of a model are."""

import contextlib
import json
import pathlib
import sys

import keras_vit
from keras_vit.cli.models import open_model
from keras_vit.cli.sources import check_sources, open_sources

_SEED = 0  # of --hold-out


def probe(args):
    """Prints the few-shot accuracy, and writes it as a table and as a picture."""
    check_sources(args)
    _check_output("--table", args.table)
    _check_output("--plot", args.plot)
    draw = _drawing() if args.plot is not None else None
    train, test = open_sources(args, _SEED)
    if test is None:
        raise ValueError("--validation or --hold-out must be given: pictures to measure on")
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):
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
    if draw is not None:
        figure = draw({model.config.name: result})
        keras_vit.evaluation.files.replace_file(args.plot, lambda partial: figure.savefig(partial, dpi=120))
    print(json.dumps(_values(result), indent=2, ensure_ascii=False) if args.json else result)


def _values(result):
    return {
        "accuracy": result.accuracy,
        "mean": result.mean,
        "std": result.std,
        "seeds": result.seeds,
        "pictures": result.count,
        "classes": result.class_names,
        "layer": result.layer,
        "l2": result.l2,
    }


def _drawing():
    """The function that draws; what it needs is looked for before anything is computed."""
    from keras_vit.analysis import plots

    return plots.few_shot_curves


def _check_output(option, path):
    """Raises where a file could not be written, before anything is computed."""
    if path is not None and not pathlib.Path(path).parent.is_dir():
        raise FileNotFoundError(f"{option} must be in a folder that exists; got {path!r}")
