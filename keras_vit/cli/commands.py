"""What `keras-vit predict`, `evaluate`, `probe`, `embed`, `explain`, `demo`, `export`, `bench` and `convert` do."""

import inspect
import os
import pathlib
import re

import numpy as np
from PIL import Image

import keras_vit
from keras_vit import checks, files
from keras_vit import demo as demo_page
from keras_vit.analysis import plots
from keras_vit.analysis.plots import import_figure
from keras_vit.cli import published
from keras_vit.cli.answers import Answer
from keras_vit.cli.failures import users_mistakes
from keras_vit.cli.models import build_model, check_without_model, find_source, given, open_model
from keras_vit.cli.sources import TASKS, kind_of, open_source, open_sources, open_task_source
from keras_vit.data.images import as_images, check_file
from keras_vit.evaluation.task_results import check_new_folder
from keras_vit.serving.timing import measure
from keras_vit.tasks import DepthMap

_TASK_OPTIONS = ("text", "points", "boxes", "segments", "threshold")
_DRAWINGS = (".png", ".jpg", ".pdf", ".svg")
_SEED = 0  # seed of the random split of `probe --hold-out`


def predict(args):
    """Classify images, the best classes of each, or return what a task model answers."""
    for image in args.images:
        check_file(image)
    model = open_model(args)
    if isinstance(model, keras_vit.TaskModel):
        return _task_answers(model, args)
    for name in given(args, ("output", *_TASK_OPTIONS)):
        raise ValueError(f"--{name} requires a task model; {args.model} is a classifier")
    answers = keras_vit.predict(model, list(args.images), top=args.top)
    values = [{"image": image, "answers": _named(row)} for image, row in zip(args.images, answers, strict=True)]
    lines = []
    for image, row in zip(args.images, answers, strict=True):
        lines += [image, *(f"  {score:.4f}  {label}" for label, score in row)]
    return Answer(values, "\n".join(lines))


def _task_answers(model, args):
    """Return what a task model answers for each image; `--output` is the drawing of one."""
    _check_output("--output", args.output, (".png", ".jpg"))
    if args.output is not None and len(args.images) > 1:
        raise ValueError(f"--output is the drawing of one image; got {len(args.images)} images")
    options = given(args, ("top", *_TASK_OPTIONS))
    options |= {name: [options[name]] * len(args.images) for name in ("points", "boxes") if name in options}
    answers = keras_vit.predict(model, list(args.images), **options)
    if args.output is not None:
        [read], [answer] = as_images(args.images), answers
        drawn = Image.fromarray(answer.draw(*[] if isinstance(answer, DepthMap) else [np.asarray(read(3))]))
        files.replace_file(args.output, drawn.save)
    values = [{"image": image, "answer": a.to_json()} for image, a in zip(args.images, answers, strict=True)]
    return Answer(values, "\n".join(f"{image}\n{a}" for image, a in zip(args.images, answers, strict=True)))


def _named(answers):
    return [{"label": label, "score": score} for label, score in answers]


def evaluate(args):
    """Measure the accuracy on labelled images, of one model or of many published files; or measure a task model."""
    if kind_of(args) in TASKS:
        return _evaluate_task(args)
    source = open_source(args)
    if args.all is not None:
        return _evaluate_all(args, source)
    if args.table is not None:
        raise ValueError("--table requires --all")
    args.model = args.model or published.address(args.published)
    found = keras_vit.evaluate(open_model(args), source, batch_size=args.batch_size, labels=args.real_labels)
    values = {"images": found.count, "correct": found.correct, "accuracy": found.top, "matching": found.matching}
    if args.real_labels is not None:
        values["left_out"] = found.left_out
    values, text = (values | _reported(found), found.report()) if args.report else (values, str(found))
    if args.published is None:
        return Answer(values, text)
    row = published.published(args.published)
    return Answer({**values, "published": row}, f"{text}\n{published.compared(row, args.real_labels is not None)}")


def _evaluate_task(args):
    """Measure a task model, and save its predictions."""
    for name in given(args, ("all", "published", "real_labels", "table")):
        raise ValueError(f"--{name.replace('_', '-')} cannot be used with --{kind_of(args).replace('_', '-')}")
    if args.save is not None:
        check_new_folder("--save", args.save)
    model = open_model(args)
    options = given(args, ("batch_size", "max_depth"))
    found = keras_vit.evaluate(model, open_task_source(args, [type(model)], model.labels), **options)
    if args.save is not None:
        found.save(args.save)
    values = {"images": found.count, "task": found.task, **found.values}
    values |= {"classes": found.classes} if args.report else {}
    return Answer(values, found.report() if args.report else str(found))


def _evaluate_all(args, source):
    """Measure the published files whose names match `--all`; the exit code is 1 if one cannot be measured."""
    check_without_model(args, "--model or --published")
    for name in [name for name in ("real_labels", "report") if getattr(args, name)]:
        raise ValueError(f"--{name.replace('_', '-')} cannot be used with --all")
    if args.table is None:
        raise ValueError("--all requires --table, the .csv file that it writes")
    _check_output("--table", args.table, (".csv",))
    rows = published.evaluate_all(args.all, source, args.table, args.batch_size)
    text = files.aligned([published.COLUMNS.values(), *(row.values() for row in rows)], left=(0, 6))
    return Answer(rows, text, code=int(any(row["error"] for row in rows)))


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
    """Measure the few-shot accuracy, and write it as a table and as a plot."""
    _check_output("--table", args.table, (".csv",))
    _check_output("--plot", args.plot, _DRAWINGS)
    train, test = open_sources(args, _SEED)
    if test is None:
        raise ValueError("probe needs test images: --validation, --hold-out or --arrays with x_test and y_test")
    model = open_model(args)
    options = given(args, ("shots", "layer", "l2", "batch_size"))
    result = keras_vit.evaluation.few_shot(model, train, test, seeds=range(args.seeds), **options)
    if args.table is not None:
        result.write_csv(args.table)
    if args.plot is not None:
        files.replace_file(args.plot, plots.few_shot_curves({model.config.name: result}).savefig)
    values = {name: getattr(result, name) for name in ("accuracy", "mean", "std", "seeds", "layer", "l2")}
    return Answer({**values, "images": result.count, "classes": result.class_names}, str(result))


def embed(args):
    """Write the features of the images in a folder."""
    _check_output("--output", args.output, (".npz",))
    source = keras_vit.data.from_files(args.folder)
    found = keras_vit.evaluation.embed(open_model(args), source, **given(args, ("layer", "batch_size")))
    found.save(args.output)
    images, size = found.features.shape
    return Answer({"output": args.output, "images": images, "features": size, "layer": found.layer}, args.output)


def explain(args):
    """Draw a sheet with the prediction and the attention for one image."""
    _check_output("--output", args.output, _DRAWINGS)
    check_file(args.image)
    model = open_model(args)
    layer = int(args.layer) if re.fullmatch(r"-?\d+", args.layer) else args.layer
    file = "" if find_source(args) is None else f" ({pathlib.Path(*pathlib.Path(args.model).parts[-2:])})"
    title = f"{model.config.name}{file}: {pathlib.Path(args.image).name}"
    found = keras_vit.explain(model, args.image, top=args.top, layer=layer, num_heads=args.heads, title=title)
    found.save(args.output)
    return Answer({"output": args.output, "image": args.image, "answers": _named(found.answers)}, args.output)


def demo(args):
    """Serve a page until Ctrl-C; the answer is its address."""
    model = open_model(args) if args.model else check_without_model(args)
    weights = pathlib.PurePath(args.weights or args.model or "").name
    settings = {"host": args.host, "port": args.port, "browser": not args.no_browser, "share": args.share}
    page = demo_page.launch(model, weights, block=False, **settings)
    address = page.share_url or page.local_url
    return Answer({"address": address}, address, then=lambda: demo_page.wait(page))


def export(args):
    """Export a model for other programs."""
    model = open_model(args)
    names = inspect.signature(keras_vit.serving.export).parameters.keys() - {"model", "check"}
    options = {name: value for name, value in vars(args).items() if name in names}
    with users_mistakes(keras_vit.serving.ExportError):
        folder = keras_vit.export(model, args.output, check=args.check or not args.no_check, **options)
    return Answer({"output": str(folder), "format": args.format, "version": int(folder.name)}, str(folder))


def bench(args):
    """Measure the speed of an exported model."""
    with users_mistakes(keras_vit.serving.ExportError):
        found = measure(args.folder, sorted({1, args.batch_size}), args.seconds)
    rows = [["batch", "images/s", "p50 ms", "p90 ms", "p99 ms"]]
    for speed in found["speeds"]:
        numbers = [speed[name] for name in ("images_per_second", "p50_ms", "p90_ms", "p99_ms")]
        rows.append([speed["batch_size"], *(f"{number:.1f}" for number in numbers)])
    return Answer(found, f"{found['folder']} ({found['format']})\n{files.aligned(rows)}")


def convert(args):
    """Write a model's weights in the layout of another library."""
    model = build_model(args)
    if args.layout != "keras":
        keras_vit.save_weights(model, args.output, layout=args.layout)
    elif args.output.endswith((".keras", ".weights.h5")):
        write = model.save if args.output.endswith(".keras") else lambda path: _save_h5(model, path)
        files.replace_file(args.output, write)
    else:
        raise ValueError(f"--output must end in .keras or .weights.h5 for --layout keras; got {args.output!r}")
    return Answer({"output": args.output, "layout": args.layout, "parameters": model.count_params()}, args.output)


def _save_h5(model, path):
    """Write a `.weights.h5` file; HDF5 ends the process if the disk becomes full, so its place is reserved first."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 4 * model.count_params())
    model.save_weights(path)


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
