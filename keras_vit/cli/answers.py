"""`keras-vit predict` and `keras-vit evaluate`."""

import contextlib
import json
import sys

import keras_vit
from keras_vit.cli.models import open_model
from keras_vit.cli.sources import open_source
from keras_vit.data.images import check_file


def predict(args):
    """Print the best classes of each image."""
    for image in args.images:
        check_file(image)
    answers = keras_vit.predict(open_model(args), list(args.images), top=args.top)
    if args.json:
        _print_json(
            [
                {"image": image, "answers": [{"label": label, "score": score} for label, score in answer]}
                for image, answer in zip(args.images, answers, strict=True)
            ]
        )
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
        "mean_confidence": None if found is None else found.mean_confidence,
        "calibration_error": None if found is None else found.error,
        "negative_log_likelihood": None if found is None else found.negative_log_likelihood,
        "mean_class_accuracy": classes.mean,
        "classes": [
            {
                "class": classes.names[n],
                "label": None if classes.labels is None else classes.labels[n],
                "images": int(classes.counts[n]),
                "correct": int(classes.correct[n]),
            }
            for n in classes.worst
        ],
        "confusions": [
            {"class": classes.names[n], "answer": answer, "images": count} for n, answer, count in classes.confusions
        ],
    }


def _print_json(value):
    print(json.dumps(value, indent=2, ensure_ascii=False))
