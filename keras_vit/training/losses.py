"""Classification losses on integer labels."""

import keras
from keras import ops

from keras_vit import checks


def classification_loss(label_smoothing=0.0, from_logits=True):
    """Softmax cross-entropy of predictions (batch, classes) and integer labels (batch,), mean over the batch.

    Args:
        label_smoothing: e in [0, 1); targets are 1 - e + e / classes for the label and e / classes for the
            others.
        from_logits: whether predictions are logits; False for probabilities.
    """
    label_smoothing = checks.check_rate("label_smoothing", label_smoothing)
    if not label_smoothing:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    return SmoothedSparseCrossentropy(label_smoothing, from_logits=from_logits)


@keras.saving.register_keras_serializable(package="keras_vit")
class SmoothedSparseCrossentropy(keras.losses.Loss):
    """Cross-entropy with label smoothing on integer labels, which Keras offers on one-hot labels alone.

    Args:
        label_smoothing: e in [0, 1).
        from_logits: whether predictions are logits.
        **kwargs: of `keras.losses.Loss`: `reduction`, `name`, `dtype`.

    Shapes:
        labels (batch,) or (batch, 1), predictions (batch, classes) -> (batch,) before the reduction.
    """

    def __init__(self, label_smoothing=0.1, from_logits=True, **kwargs):
        super().__init__(**kwargs)
        self.label_smoothing = checks.check_rate("label_smoothing", label_smoothing)
        self.from_logits = checks.check_flag("from_logits", from_logits)

    def call(self, y_true, y_pred):
        labels = ops.reshape(ops.cast(y_true, "int32"), ops.shape(y_pred)[:-1])  # (batch,)
        targets = ops.one_hot(labels, y_pred.shape[-1], dtype=y_pred.dtype)  # (batch, classes)
        return keras.losses.categorical_crossentropy(
            targets, y_pred, from_logits=self.from_logits, label_smoothing=self.label_smoothing
        )

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "from_logits": self.from_logits,
        }
