"""Labels that are not classes: an error before the step that would use them.

TensorFlow's kernel for CPUs rejects such labels. With XLA the loss, and then every weight, becomes NaN. JAX and one-hot
labels count such rows as loss 0. Delete this file when Keras checks labels on every backend; test_labels.py shows it.
"""

import contextlib
import re
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.compat.saved_objects import CrossEntropy

# The error of TensorFlow's kernel, and that of `check_labels` in a graph
_OUTSIDE = re.compile(r"label value of\W+?(-?\d+)\W+which is outside the valid range of \[0, (\d+)\)")


class Rule(NamedTuple):
    """An output whose loss takes indices of classes."""

    name: str
    place: int  # among the outputs
    classes: int
    shapes: list  # of the labels, without the batch
    ignored: int | None  # a label that is allowed although it is no class

    def indices_in(self, y, parts_of):
        """Return the parts of the labels of a batch for this output if they are indices of classes, else an empty list.

        Args:
            y: labels, or a list or dict with those of each output.
            parts_of: function from labels to the parts of this process.
        """
        parts = [part for part in parts_of(_of_output(y, self.name, self.place)) if hasattr(part, "shape")]
        # TensorFlow traces labels of several ranks without a rank.
        return [x for x in parts if getattr(x.shape, "rank", 0) is None or tuple(x.shape)[1:] in self.shapes]

    def allows(self, labels):
        """Return for each index whether it is allowed."""
        is_class = (labels >= 0) & (labels < self.classes)
        return is_class if self.ignored is None else is_class | (labels == self.ignored)


def label_rules(model):
    """Return a `Rule` for each output of a compiled functional model whose loss takes indices of classes."""
    outputs, rules = getattr(model, "outputs", None) or [], []
    names = model.output if outputs and isinstance(model.output, dict) else getattr(model, "output_names", ())
    for place, (name, output) in enumerate(zip(names, outputs, strict=False)):
        loss = _of_output(model.loss, name, place)
        loss = keras.losses.get(loss) if isinstance(loss, str) else loss
        is_function = getattr(loss, "func", loss) is keras.losses.sparse_categorical_crossentropy  # also a partial one
        if is_function or isinstance(loss, (keras.losses.SparseCategoricalCrossentropy, CrossEntropy)):
            ignored = getattr(loss, "ignore_class", getattr(loss, "keywords", {}).get("ignore_class"))
            *sides, classes = output.shape[1:]
            is_target = classes == 1 and isinstance(loss, CrossEntropy)  # a label of shape (..., 1)
            shapes = [tuple(sides), tuple(sides) if is_target else (*sides, 1)]
            rules.append(Rule(name, place, classes, shapes, ignored))
    return rules


def parts_here(labels):
    """Return the parts of labels, which may be an array of JAX in several processes, that this process has."""
    return [shard.data for shard in getattr(labels, "addressable_shards", ())] or [labels]


def check_labels(rules, y, parts_of=parts_here, in_graph=False):
    """Raise a `ValueError` if labels of a batch are not classes; see `Rule`.

    In a graph of TensorFlow, return operations that fail instead.
    """
    check = _assert if in_graph else _check
    return [check(rule, part) for rule in rules for part in rule.indices_in(y, parts_of)]


def _check(rule, labels):
    labels = np.asarray(labels)
    wrong = labels[~rule.allows(labels)]
    if wrong.size:
        raise ValueError(_in_words(wrong.max().item(), rule.classes))


def _assert(rule, labels):
    import tensorflow as tf

    labels = tf.cast(labels, "int64")
    is_right = rule.allows(labels)
    found = tf.reduce_max(tf.where(is_right, tf.int64.min, labels))
    said = ["label value of", found, f"which is outside the valid range of [0, {rule.classes})"]
    return tf.debugging.Assert(tf.reduce_all(is_right), said)


def _of_output(values, name, place):
    """Return the value of one output: the value of all, or that of a dict by its name, or of a list by its place."""
    if isinstance(values, dict):
        return values.get(name)
    return values[place] if isinstance(values, (list, tuple)) else values


@contextlib.contextmanager
def labels_in_words():
    """Context that raises a short `ValueError` if a label is not a class; other errors pass unchanged."""
    try:
        yield
    except Exception as error:
        found = _OUTSIDE.search(str(error))
        if found is None:
            raise
        raise ValueError(_in_words(*map(int, found.groups()))) from None


def _in_words(label, classes):
    numbers = f"from 0 to {classes - 1}, as the model has {classes} classes" if classes > 1 else "0, the only class"
    return f"labels must be {numbers}; a batch has {label}"
