"""Warnings about losses that do not match a model's head; with them a model learns almost nothing, without an error."""

import warnings

import keras


def warn_of_loss(loss, config):
    """Warn if a loss would clip logits to probabilities, or compares classes of a model with one logit.

    Args:
        loss: the `loss` of `compile`: a name, a function, a `keras.losses.Loss`, None, or a structure of them.
        config: `ImageConfig` of the compiled model.
    """
    if not config.include_top:
        return
    for part in keras.tree.flatten(loss):
        found = keras.losses.get(part) if isinstance(part, str) else part
        name = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
        if config.classes == 1 and _kind(found) in _BETWEEN_CLASSES:
            warnings.warn(
                f"loss {name} compares classes, and this model has classes=1: build it with classes=2, or give "
                "keras.losses.BinaryCrossentropy(from_logits=True)",
                stacklevel=3,
            )
        elif config.classifier_activation is None and _takes_probabilities(found):
            warnings.warn(
                f"loss {name} takes probabilities, and this model ends in logits: give a loss with from_logits=True, "
                "such as keras.losses.SparseCategoricalCrossentropy(from_logits=True), or build the model with "
                'classifier_activation="softmax"',
                stacklevel=3,
            )


def _takes_probabilities(loss):
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", True) is False
    return _kind(loss) in (*_BETWEEN_CLASSES, "binarycrossentropy")  # the default of these functions


def _kind(loss):
    """Return the name of a loss, the same for its class and its function."""
    return getattr(loss, "__name__", type(loss).__name__).replace("_", "").lower()


_BETWEEN_CLASSES = ("categoricalcrossentropy", "sparsecategoricalcrossentropy")
