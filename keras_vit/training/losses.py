"""The losses that recipes name; classification losses on integer labels and on mixed ones."""

from keras_vit import checks
from keras_vit.compat.label_forms import CROSS_ENTROPIES, CrossEntropy

MASKED_PATCHES = "masked_patches"  # what a `keras_vit.MaskedPatchPrediction` compares, by its target
LOSSES = (*CROSS_ENTROPIES, MASKED_PATCHES)


def classification_loss(name="softmax", label_smoothing=0.0, from_logits=True):
    """Cross-entropy of predictions (batch, classes) and labels (batch,) or (batch, classes), mean over the batch.

    Args:
        name: `softmax`, one class per image, or `sigmoid`, each class for itself and summed over the classes, which
            the paper's pre-training uses (google-research/vision_transformer, issue 34).
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
