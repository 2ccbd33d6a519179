"""The losses of recipes; the classification losses accept integer labels and mixed labels."""

from keras_vit import checks
from keras_vit.compat.saved_objects import CROSS_ENTROPIES, CrossEntropy

MASKED_PATCHES = "masked_patches"  # a `keras_vit.MaskedPatchPrediction` computes this loss itself
LOSSES = (*CROSS_ENTROPIES, MASKED_PATCHES)


def classification_loss(name="softmax", label_smoothing=0.0, from_logits=True):
    """Return the cross-entropy loss, averaged over the batch.

    It accepts predictions (batch, classes) and labels (batch,) or (batch, classes).

    Args:
        name: `softmax`, one class per image, or `sigmoid`, which treats each class separately and sums over the
            classes; the paper's pre-training uses it (google-research/vision_transformer, issue 34).
        label_smoothing: e in [0, 1); targets are (1 - e) * label + e / classes.
        from_logits: whether predictions are logits; False for probabilities.

    Returns:
        A `keras.losses.Loss`.

    Raises:
        ValueError: on an unknown name or a rate out of range.
    """
    checks.check_choice("loss", name, CROSS_ENTROPIES)
    checks.check_flag("from_logits", from_logits)
    return CrossEntropy(name, from_logits, checks.check_rate("label_smoothing", label_smoothing))
