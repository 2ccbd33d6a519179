"""`keras-vit predict` and `keras-vit evaluate`: pictures in, answers out."""

import contextlib
import json
import sys

import keras_vit
from keras_vit.cli.models import open_model
from keras_vit.cli.sources import open_source


def predict(args):
    """Prints the likeliest classes of each picture."""
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
    with contextlib.redirect_stdout(sys.stderr):
        accuracy = keras_vit.evaluate(model, source, batch_size=args.batch_size, verbose=sys.stderr.isatty())
    if not args.json:
        print(accuracy)
        return
    _print_json(
        {
            "pictures": accuracy.count,
            "correct": accuracy.correct,
            "accuracy": accuracy.top,
            "matching": accuracy.matching,
        }
    )


def _print_json(value):
    print(json.dumps(value, indent=2, ensure_ascii=False))
