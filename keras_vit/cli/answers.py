"""`keras-vit predict` and `keras-vit evaluate`: pictures in, answers out."""

import contextlib
import json
import sys

import keras_vit
from keras_vit.cli.models import open_model
from keras_vit.cli.sources import open_source
from keras_vit.data.encoded import check_file


def predict(args):
    """Prints the likeliest classes of each picture."""
    for picture in args.pictures:
        check_file(picture)
    answers = keras_vit.predict(open_model(args), list(args.pictures), top=args.top)
    if args.json:
        _print_json(
            [
                {"picture": picture, "answers": [{"label": label, "score": score} for label, score in answer]}
                for picture, answer in zip(args.pictures, answers, strict=True)
            ]
        )
        return
    for picture, answer in zip(args.pictures, answers, strict=True):
        print(picture)
        for label, score in answer:
            print(f"  {score:.4f}  {label}")


def evaluate(args):
    """Prints the accuracy on labelled pictures."""
    source = open_source(args)
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):  # the bar of Keras
        accuracy = keras_vit.evaluate(
            model, source, batch_size=args.batch_size, verbose=sys.stderr.isatty(), labels=args.real_labels
        )
    if not args.json:
        print(accuracy.report() if args.report else accuracy)
        return
    values = {
        "pictures": accuracy.count,
        "correct": accuracy.correct,
        "accuracy": accuracy.top,
        "matching": accuracy.matching,
    }
    if args.real_labels is not None:
        values["left_out"] = accuracy.left_out
    _print_json(values | (_reported(accuracy) if args.report else {}))


def _reported(accuracy):
    """What `--report` adds to the JSON; null where the head gives no probabilities."""
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
                "pictures": int(classes.counts[n]),
                "correct": int(classes.correct[n]),
            }
            for n in classes.worst
        ],
        "confusions": [
            {"class": classes.names[n], "answer": answer, "pictures": count} for n, answer, count in classes.confusions
        ],
    }


def _print_json(value):
    print(json.dumps(value, indent=2, ensure_ascii=False))
