"""Conversion of command-line words to sizes, shares and lists. Standard library only, as in parser.py."""

import argparse
import re

_OF_SEVERAL_NUMBERS = ("--image-size", "--resize", "--crop", "--mean", "--std")


def size(text):
    """Convert `"224"` to 224, and `"160x224"` or `"160,224"` to (160, 224)."""
    try:
        sides = tuple(int(part) for part in re.split("[x,]", text))
    except ValueError:
        sides = ()
    if len(sides) not in (1, 2):
        raise argparse.ArgumentTypeError(f"expected N or HEIGHTxWIDTH in pixels; got {text!r}")
    return sides[0] if len(sides) == 1 else sides


def count(text):
    """Convert `"500"` to 500; the minimum is 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1; got {text!r}")
    return int(text)


def counts(text):
    """Convert `"1,5,10"` to (1, 5, 10); the minimum is 1."""
    return tuple(count(part.strip()) for part in text.split(","))


def share(text):
    """Convert `"0.1"` to 0.1, from 0 to 1."""
    if not _is_number(text) or not 0.0 <= float(text) <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1; got {text!r}")
    return float(text)


def field(text):
    """Convert `"learning_rate=0.01"` to ("learning_rate", "0.01")."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE; got {text!r}")
    return name.strip(), value.strip()


def names(text):
    """Convert `"images,features"` to ("images", "features")."""
    return tuple(part.strip() for part in text.split(","))


def numbers(text):
    """Convert `"0.5"` to (0.5,), and `"0.485,0.456,0.406"` to three numbers."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"expected 1 or 3 numbers; got {text!r}")
    return values


def join_numbers(words):
    """Join the numbers after an option that accepts several into one word, so that images may follow them."""
    joined = []
    for word in words:
        previous = joined[-2:]
        if len(previous) == 2 and previous[0] in _OF_SEVERAL_NUMBERS and _is_number(word) and _is_list(previous[1]):
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return joined


def _is_list(text):
    return all(_is_number(part) for part in text.split(","))


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True
