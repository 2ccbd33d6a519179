"""The metric of every training: the accuracy, for all forms of labels."""

from keras_vit.compat.saved_objects import Accuracy


def accuracy():
    """Return the accuracy metric, for integer labels (batch,) and mixed labels (batch, classes)."""
    return Accuracy(name="accuracy")
