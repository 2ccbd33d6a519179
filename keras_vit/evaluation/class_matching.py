"""Match the classes of the data to the logits of a model: by WordNet id, by name or by a leading index."""

import collections
import re

from keras_vit.checkpoints.releases.release import wordnet_ids
from keras_vit.data.sources import composed

_WORDNET_ID = re.compile(r"(?<![a-zA-Z0-9])n\d{8}(?!\d)")
_LEADING_INDEX = re.compile(r"(\d{1,18})(?![a-zA-Z0-9])")


def match_classes(class_names, labels, classes):
    """Find the logit of each class.

    These ways are tried in order; the first that finds a distinct logit for every class is used:
    the WordNet id in the name (`0002_n01484850`), if the labels are ImageNet's; the name, ignoring case and
    the difference between spaces, hyphens and underscores, as a label or one of its comma-separated synonyms;
    the index at the start of the name (`0002_...`), unless the label at this index begins with another number; and, for
    a model without labels, the order, if the data has as many classes as the model.

    Folders sort 10 before 2. Without labels, it is therefore unknown whether logit 2 is class 2, or class 10 because
    the model was trained on folders in their order. This raises an error.

    Args:
        class_names: names of the data's classes.
        labels: names of the model's logits, or None.
        classes: number of logits.

    Returns:
        `(logits, way)`: a tuple with the logit of each class, and the way that was used, as text.

    Raises:
        ValueError: if no way matches every class; the message lists up to five classes that the best way does not
            match. Without labels, also if the index and the order of folders may differ.
    """
    ways = {
        "by WordNet id": _by_wordnet_id(class_names, wordnet_ids(labels) or ()),
        "by name": _by_name(class_names, labels or ()),
        "by leading index": _by_leading_index(class_names, labels, classes),
    }
    if labels is None and len(class_names) == classes:
        ways["in order, as the model has no labels"] = list(range(classes))
    for way, found in ways.items():
        counts = collections.Counter(found)
        ways[way] = [logit if counts[logit] == 1 else None for logit in found]  # a shared logit is ambiguous
        if None not in ways[way]:
            if labels is None:
                _check_order(class_names, found, classes)
            return tuple(found), way
    way, found = min(ways.items(), key=lambda attempt: attempt[1].count(None))
    names = [repr(name) for name, logit in zip(class_names, found, strict=True) if logit is None]
    closest = f"; {len(found) - len(names)} match {way}" if len(names) < len(found) else ""
    against = f"the model's {classes} classes, which have no names," if labels is None else "the model's labels"
    raise ValueError(
        f"class names must match {against} by WordNet id, by name or by a leading index; {len(names)} of {len(found)} "
        f"do not: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}{closest}"
    )


def _by_wordnet_id(class_names, ids):
    logit_of = {wordnet_id: logit for logit, wordnet_id in enumerate(ids)}
    return [logit_of.get(match[0]) if match else None for match in map(_WORDNET_ID.search, class_names)]


def _by_name(class_names, labels):
    if [_plain(name) for name in class_names] == [_plain(label) for label in labels]:
        return list(range(len(labels)))  # identical lists match even if a name appears twice
    whole, synonyms = collections.defaultdict(set), collections.defaultdict(set)
    for logit, label in enumerate(labels):
        whole[_plain(label)].add(logit)
        for part in label.split(","):
            synonyms[_plain(part)].add(logit)

    def find(name):
        logits = whole.get(_plain(name)) or set().union(*(synonyms.get(_plain(p), ()) for p in name.split(",")))
        return next(iter(logits)) if len(logits) == 1 else None

    return [find(name) for name in class_names]


def _by_leading_index(class_names, labels, classes):
    numbers = [_leading_number(label) for label in labels or [""] * classes]
    found = map(_leading_number, class_names)
    return [n if n is not None and n < classes and numbers[n] in (None, n) else None for n in found]


def _check_order(class_names, found, classes):
    """Raise an error if logits `found` of a model without labels differ from those that another order would give."""
    if len(class_names) == classes:
        is_certain = list(found) == list(range(classes))
    else:  # of some classes, only numbers of full width have the same order as text
        is_certain = all(len(_LEADING_INDEX.match(name)[1]) >= len(str(classes - 1)) for name in class_names)
    if not is_certain:
        raise ValueError(
            f"class names must match the model's {classes} classes, which have no names, in one way; their leading "
            "indices differ from the order of folders, which sort 10 before 2. Set model.labels: to the class_names "
            f"that it was trained on (sorted(names) of folders), or to [str(n) for n in range({classes})] if "
            "logit n is class n"
        )


def _leading_number(name):
    match = _LEADING_INDEX.match(name)
    return int(match[1]) if match else None


def _plain(name):
    return re.sub(r"[\s_-]+", " ", composed(name)).strip().casefold()
