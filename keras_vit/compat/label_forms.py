"""Cross-entropy and accuracy for both integer labels and one number per class; Keras has separate classes.

A model that trains on mixed labels (batch, classes) is validated on integer labels (batch,), with one loss and one
metric. Keras 3.15 also lacks a sigmoid cross-entropy that is summed over the classes, and label smoothing for integer
labels. Delete this file when Keras has them; tests/compat/test_label_forms.py checks for it.
"""

import keras
from keras import ops

CROSS_ENTROPIES = ("softmax", "sigmoid")


@keras.saving.register_keras_serializable(package="keras_vit")
class CrossEntropy(keras.losses.Loss):
    """Softmax or sigmoid cross-entropy, one number per example.

    Args:
        kind: `softmax`, one class per image, or `sigmoid`, independent classes, summed over the classes.
        from_logits: whether predictions are logits; False for probabilities.
        label_smoothing: e in [0, 1); targets become (1 - e) * target + e / classes.
        **kwargs: arguments of `keras.losses.Loss`: `reduction`, `name`, `dtype`.

    Shapes:
        predictions (..., classes); labels: integer classes (...) or (..., 1), or one target in [0, 1] per class (...,
        classes), which sum to 1 for `softmax` -> (...) before the reduction. With one class, labels (..., 1) are
        targets.
    """

    def __init__(self, kind="softmax", from_logits=True, label_smoothing=0.0, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.from_logits = from_logits
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        classes = y_pred.shape[-1]
        targets = y_true if _has_target_per_class(y_true, y_pred) else ops.one_hot(_indices(y_true, y_pred), classes)
        targets = ops.cast(targets, y_pred.dtype)
        if self.label_smoothing:
            targets = (1.0 - self.label_smoothing) * targets + self.label_smoothing / classes
        if self.kind == "softmax":
            return ops.categorical_crossentropy(targets, y_pred, from_logits=self.from_logits)
        return ops.sum(ops.binary_crossentropy(targets, y_pred, from_logits=self.from_logits), axis=-1)

    def get_config(self):
        own = {"kind": self.kind, "from_logits": self.from_logits, "label_smoothing": self.label_smoothing}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="keras_vit")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """Share of the examples whose most likely class is correct.

    The correct class is that of an integer label. If the label has one target per class, any class with the highest
    target is correct: each true class of a multi-label image, the larger part of a mixed one.

    Shapes: as `CrossEntropy`.
    """

    def __init__(self, name="accuracy", dtype=None):
        super().__init__(fn=_is_right, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}


def _is_right(y_true, y_pred):
    answers = ops.argmax(y_pred, axis=-1)
    if not _has_target_per_class(y_true, y_pred):
        return ops.cast(ops.equal(ops.cast(answers, "int32"), _indices(y_true, y_pred)), "float32")
    of_answers = ops.take_along_axis(y_true, ops.expand_dims(answers, -1), axis=-1)
    return ops.cast(ops.squeeze(of_answers, -1) >= ops.max(y_true, axis=-1), "float32")


def _has_target_per_class(y_true, y_pred):
    # Decided by shape only, because Keras casts labels to floats before a loss gets them.
    return len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] in (y_pred.shape[-1], None)


def _indices(y_true, y_pred):
    return ops.reshape(ops.cast(y_true, "int32"), ops.shape(y_pred)[:-1])
