"""Matching the classes of the data to the logits of a model: by WordNet id, by name or by a leading index."""

import collections
import re

from keras_vit.checkpoints.releases.release import wordnet_ids

_WORDNET_ID = re.compile(r"(?<![a-zA-Z0-9])n\d{8}(?!\d)")
_LEADING_INDEX = re.compile(r"(\d+)(?![a-zA-Z0-9])")


def match_classes(class_names, labels, classes):
    """Find the logit of each class.

    These ways are tried in order; the first that finds a distinct logit for every class is used:
    the WordNet id in the name (`0002_n01484850`), if the labels are ImageNet's; the name, ignoring case and
    the difference between spaces, hyphens and underscores, as a label or one of its comma-separated synonyms;
    the index at the start of the name (`0002_...`); and, for a model without labels, the order, if the
    data has as many classes as the model.

    Args:
        class_names: names of the data's classes.
        labels: names of the model's logits, or None.
        classes: number of logits.

    Returns:
        `(logits, way)`: a tuple with the logit of each class, and the way that was used, as text.

    Raises:
        ValueError: if no way matches every class; it names up to five that the best way does not match.
    """
    attempts = []
    for way, find in _WAYS.items():
        found = _only_unique(find(class_names, labels, classes))
        if None not in found:
            return tuple(found), way
        attempts.append((found.count(None), way, found))
    missing, way, found = min(attempts, key=lambda attempt: attempt[0])
    names = [repr(name) for name, logit in zip(class_names, found, strict=True) if logit is None][:5]
    closest = f"; {way}, {len(found) - missing} do" if missing < len(found) else ""
    against = f"the model's {classes} classes, which have no names," if labels is None else "the model's labels"
    raise ValueError(
        f"class names must match {against} by WordNet id, by name or by a leading index; "
        f"{missing} of {len(found)} do not: {', '.join(names)}{', ...' if missing > 5 else ''}{closest}"
    )


def _by_wordnet_id(class_names, labels, classes):
    logit_of = {wordnet_id: logit for logit, wordnet_id in enumerate(wordnet_ids(labels) or ())}
    ids = (_WORDNET_ID.search(name) for name in class_names)
    return [logit_of.get(found[0]) if found else None for found in ids]


def _by_name(class_names, labels, classes):
    if labels is None:
        return [None] * len(class_names)
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
    indices = (_LEADING_INDEX.match(name) for name in class_names)
    return [int(found[1]) if found and int(found[1]) < classes else None for found in indices]


def _in_order(class_names, labels, classes):
    is_possible = labels is None and len(class_names) == classes
    return list(range(classes)) if is_possible else [None] * len(class_names)


_WAYS = {
    "by WordNet id": _by_wordnet_id,
    "by name": _by_name,
    "by leading index": _by_leading_index,
    "in order, as the model has no labels": _in_order,
}


def _only_unique(logits):
    """Replace logits that several classes share by None, because these classes are ambiguous."""
    counts = collections.Counter(logits)
    return [logit if counts[logit] == 1 else None for logit in logits]


def _plain(name):
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()
