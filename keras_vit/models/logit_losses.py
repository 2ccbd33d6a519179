"""A warning for models that end in logits: Keras's cross-entropies take what they get for probabilities by default."""

import warnings

import keras


def warn_of_probabilities(loss):
    """Warns of a loss that would clip logits to probabilities: it learns next to nothing, and does not complain.

    Args:
        loss: what `compile` takes: a name, a function, a `keras.losses.Loss`, None, or a structure of them.
    """
    for part in keras.tree.flatten(loss):
        if _takes_probabilities(keras.losses.get(part) if isinstance(part, str) else part):
            name = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
            warnings.warn(
                f"loss {name} takes probabilities, and this model ends in logits: give a loss with from_logits=True, "
                "such as keras.losses.SparseCategoricalCrossentropy(from_logits=True), or build the model with "
                'classifier_activation="softmax"',
                stacklevel=3,
            )


def _takes_probabilities(loss):
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", True) is False
    return getattr(loss, "__name__", "") in _CROSS_ENTROPIES


# functions of Keras whose from_logits is False where nothing is said
_CROSS_ENTROPIES = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
