"""What training measures beside its loss."""

from keras_vit.compat.label_forms import Accuracy


def accuracy():
    """Share of the images whose likeliest class is right, on integer labels (batch,) and mixed (batch, classes)."""
    return Accuracy(name="accuracy")
