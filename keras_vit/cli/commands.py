"""What `keras-vit predict`, `evaluate`, `probe`, `embed`, `explain`, `demo`, `export` and `convert` do."""

import contextlib
import inspect
import json
import pathlib
import re
import sys

import keras_vit
from keras_vit import analysis, checks, files
from keras_vit import demo as demo_page
from keras_vit.analysis import plots
from keras_vit.analysis.plots import import_figure
from keras_vit.cli.failures import users_mistakes
from keras_vit.cli.models import build_model, check_without_model, given, open_model
from keras_vit.cli.sources import open_source, open_sources
from keras_vit.data.images import check_file

_DRAWINGS = (".png", ".jpg", ".pdf", ".svg")
_SEED = 0  # seed of the random split of `probe --hold-out`


def predict(args):
    """Print the best classes of each image."""
    for image in args.images:
        check_file(image)
    answers = keras_vit.predict(open_model(args), list(args.images), top=args.top)
    if args.json:
        rows = [[{"label": label, "score": score} for label, score in answer] for answer in answers]
        _print_json([{"image": image, "answers": row} for image, row in zip(args.images, rows, strict=True)])
        return
    for image, answer in zip(args.images, answers, strict=True):
        print(image)
        for label, score in answer:
            print(f"  {score:.4f}  {label}")


def evaluate(args):
    """Print the accuracy on labelled images."""
    source = open_source(args)
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):  # Keras's progress bar
        accuracy = keras_vit.evaluate(
            model, source, batch_size=args.batch_size, verbose=sys.stderr.isatty(), labels=args.real_labels
        )
    if not args.json:
        print(accuracy.report() if args.report else accuracy)
        return
    values = {
        "images": accuracy.count,
        "correct": accuracy.correct,
        "accuracy": accuracy.top,
        "matching": accuracy.matching,
    }
    if args.real_labels is not None:
        values["left_out"] = accuracy.left_out
    _print_json(values | (_reported(accuracy) if args.report else {}))


def _reported(accuracy):
    """Return what `--report` adds to the JSON; null if the scores of the head are not probabilities."""
    found, classes = accuracy.calibration, accuracy.classes
    return {
        "mean_confidence": found and found.mean_confidence,
        "calibration_error": found and found.error,
        "negative_log_likelihood": found and found.negative_log_likelihood,
        "mean_class_accuracy": classes.mean,
        "classes": [
            {
                "class": classes.names[n],
                "label": classes.labels and classes.labels[n],
                "images": int(classes.counts[n]),
                "correct": int(classes.correct[n]),
            }
            for n in classes.worst
        ],
        "confusions": [
            {"class": classes.names[n], "answer": answer, "images": count} for n, answer, count in classes.confusions
        ],
    }


def probe(args):
    """Print the few-shot accuracy, and write it as a table and as a plot."""
    _check_output("--table", args.table, (".csv",))
    _check_output("--plot", args.plot, _DRAWINGS)
    train, test = open_sources(args, _SEED)
    if test is None:
        raise ValueError(
            "--validation, --hold-out or --arrays with x_test and y_test must be given, because probe needs test images"
        )
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):  # Keras's progress bar
        result = keras_vit.evaluation.few_shot(
            model,
            train,
            test,
            seeds=range(args.seeds),
            verbose=sys.stderr.isatty(),
            **given(args, ("shots", "layer", "l2", "batch_size")),
        )
    if args.table is not None:
        result.write_csv(args.table)
    if args.json:
        values = {name: getattr(result, name) for name in ("accuracy", "mean", "std", "seeds", "layer", "l2")}
        _print_json({**values, "images": result.count, "classes": result.class_names})
    else:
        print(result)
    if args.plot is not None:
        files.replace_file(args.plot, plots.few_shot_curves({model.config.name: result}).savefig)


def embed(args):
    """Write the features of the images in a folder and print the path."""
    _check_output("--output", args.output, (".npz",))
    source = keras_vit.data.from_files(args.folder)
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):  # Keras's progress bar
        options = given(args, ("layer", "batch_size"))
        found = keras_vit.evaluation.embed(model, source, verbose=sys.stderr.isatty(), **options)
    found.save(args.output)
    print(args.output)


def explain(args):
    """Draw a sheet with the prediction and the attention for one image and print its path."""
    _check_output("--output", args.output, _DRAWINGS)
    check_file(args.image)
    model = open_model(args)
    inputs = keras_vit.preprocess(args.image, model.preprocessing)
    layer = int(args.layer) if re.fullmatch(r"-?\d+", args.layer) else args.layer
    heads = analysis.head_maps(model, inputs, layer)
    path = pathlib.Path(args.model)
    file = f" ({pathlib.Path(*path.parts[-2:])})" if path.suffix == ".keras" else ""
    sheet = plots.explanation(
        model.preprocessing.to_images(inputs)[0],
        keras_vit.predict(model, args.image, top=args.top)[0],
        analysis.attention_rollout(model, inputs)[0],
        heads[0],
        title=f"{model.config.name}{file}: {pathlib.Path(args.image).name}",
        num_heads=args.heads,
    )
    files.replace_file(args.output, sheet.savefig)
    print(args.output)


def demo(args):
    """Print the address of the page and serve it until Ctrl-C."""
    model = open_model(args) if args.model else check_without_model(args)
    weights = pathlib.PurePath(args.weights or args.model or "").name
    settings = {"host": args.host, "port": args.port, "browser": not args.no_browser, "share": args.share}
    page = demo_page.launch(model, weights, block=False, **settings)
    print(page.share_url or page.local_url, flush=True)
    demo_page.wait(page)


def export(args):
    """Export a model for other programs and print its folder."""
    model = open_model(args)
    names = inspect.signature(keras_vit.serving.export).parameters.keys() - {"model", "check"}
    options = {name: value for name, value in vars(args).items() if name in names}
    with users_mistakes(keras_vit.serving.ExportError):
        folder = keras_vit.export(model, args.output, check=args.check or not args.no_check, **options)
    print(folder)


def convert(args):
    """Write a model's weights in the layout of another library and print the path."""
    model = build_model(args, needs_weights=True)
    if args.layout != "keras":
        keras_vit.save_weights(model, args.output, layout=args.layout)
    elif args.output.endswith((".keras", ".weights.h5")):
        files.replace_file(args.output, model.save if args.output.endswith(".keras") else model.save_weights)
    else:
        raise ValueError(f"--output must end in .keras or .weights.h5 for --layout keras; got {args.output!r}")
    print(args.output)


def _check_output(option, path, suffixes):
    """Raise before any computation if an output file (None for no file) cannot be written.

    Its ending or its folder may be wrong, or matplotlib, which draws figures, may be missing.
    """
    if path is None:
        return
    path = pathlib.Path(path)
    checks.check_choice(f"the ending of {option}", path.suffix.lower(), suffixes)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{option} must be in a folder that exists; got {str(path)!r}")
    if suffixes == _DRAWINGS:
        import_figure()


def _print_json(value):
    print(json.dumps(value, indent=2, ensure_ascii=False))
