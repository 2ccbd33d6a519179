"""What the words of a command line stand for: sizes, shares, lists. Standard library only, as parser.py."""

import argparse
import re

_OF_SEVERAL_NUMBERS = ("--image-size", "--resize", "--crop", "--mean", "--std")


def size(text):
    """`"224"` -> 224; `"160x224"` or `"160,224"` -> (160, 224)."""
    try:
        sides = tuple(int(part) for part in re.split("[x,]", text))
    except ValueError:
        sides = ()
    if len(sides) not in (1, 2):
        raise argparse.ArgumentTypeError(f"expected N or HEIGHTxWIDTH in pixels; got {text!r}")
    return sides[0] if len(sides) == 1 else sides


def count(text):
    """`"500"` -> 500, from 1"""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1; got {text!r}")
    return int(text)


def counts(text):
    """`"1,5,10"` -> (1, 5, 10), from 1"""
    return tuple(count(part.strip()) for part in text.split(","))


def share(text):
    """`"0.1"` -> 0.1, from 0 to 1"""
    if not _is_number(text) or not 0.0 <= float(text) <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1; got {text!r}")
    return float(text)


def field(text):
    """`"learning_rate=0.01"` -> ("learning_rate", "0.01")"""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE; got {text!r}")
    return name.strip(), value.strip()


def names(text):
    """`"images,features"` -> ("images", "features")"""
    return tuple(part.strip() for part in text.split(","))


def numbers(text):
    """`"0.5"` -> (0.5,); `"0.485,0.456,0.406"` -> the three."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise argparse.ArgumentTypeError(f"expected 1 or 3 numbers; got {text!r}")
    return values


def join_numbers(words):
    """Write the numbers after an option that takes several as one word, so that images may follow them."""
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
