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

# The error of TensorFlow's kernel, and that of `assert_labels`
_OUTSIDE = re.compile(r"label value of\W+?(-?\d+)\W+which is outside the valid range of \[0, (\d+)\)")


class Rule(NamedTuple):
    """An output whose loss takes indices of classes."""

    name: str
    place: int  # among the outputs
    shape: tuple
    ignored: int | None  # a label that is allowed although it is no class
    takes_targets: bool  # whether labels may be targets, one per class

    def labels_in(self, y):
        """Return the indices of classes for this output in the labels of a batch, None if there are none."""
        if isinstance(y, dict):
            labels = y.get(self.name)
        else:
            labels = y[self.place] if isinstance(y, (list, tuple)) else y
        shape = getattr(labels, "shape", None)
        if shape is None or getattr(shape, "rank", 0) is None:  # TensorFlow traces labels of several ranks without one
            return labels
        sides = tuple(shape)[1:]
        if self.takes_targets and len(sides) == len(self.shape) - 1 and sides[-1] in (self.shape[-1], None):
            return None
        return labels if sides in (self.shape[1:-1], (*self.shape[1:-1], 1)) else None


def label_rules(model):
    """Return a `Rule` for each output of a compiled functional model whose loss takes indices of classes."""
    outputs, rules = getattr(model, "outputs", None) or [], []
    names = model.output if outputs and isinstance(model.output, dict) else getattr(model, "output_names", ())
    for place, (name, output) in enumerate(zip(names, outputs, strict=False)):
        losses = model.loss
        loss = losses.get(name) if isinstance(losses, dict) else losses
        loss = loss[place] if isinstance(loss, (list, tuple)) else loss
        loss = keras.losses.get(loss) if isinstance(loss, str) else loss
        takes_targets = isinstance(loss, CrossEntropy)
        is_sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
        # a functools.partial has `func` and `keywords`
        is_sparse |= getattr(loss, "func", loss) is keras.losses.sparse_categorical_crossentropy
        if is_sparse or takes_targets:
            ignored = getattr(loss, "ignore_class", getattr(loss, "keywords", {}).get("ignore_class"))
            rules.append(Rule(name, place, tuple(output.shape), ignored, takes_targets))
    return rules


def check_labels(rules, y):
    """Raise a `ValueError` if labels of a batch, which are arrays, are not classes."""
    for rule in rules:
        labels = rule.labels_in(y)
        shards = getattr(labels, "addressable_shards", None)  # the parts of an array of JAX that this process has
        for part in [labels] if shards is None else [shard.data for shard in shards]:
            found = np.asarray([] if part is None else part)
            wrong = found[~((found >= 0) & (found < rule.shape[-1]) | (found == rule.ignored))]
            if wrong.size:
                raise ValueError(_in_words(int(wrong.max()), rule.shape[-1]))


def assert_labels(rules, y):
    """Return operations of a TensorFlow graph that fail if labels of a batch are not classes."""
    import tensorflow as tf

    checks = []
    for rule in rules:
        labels = rule.labels_in(y)
        if labels is not None:
            labels = tf.cast(labels, "int64")
            is_right = (labels >= 0) & (labels < rule.shape[-1])
            is_right = is_right if rule.ignored is None else is_right | (labels == rule.ignored)
            found = tf.reduce_max(tf.where(is_right, tf.int64.min, labels))
            said = ["label value of", found, f"which is outside the valid range of [0, {rule.shape[-1]})"]
            checks.append(tf.debugging.Assert(tf.reduce_all(is_right), said))
    return checks


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
