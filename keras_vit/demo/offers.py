"""Offers: the models and weights that a page lets its visitors choose from; nothing else is ever opened."""

from keras_vit import checks
from keras_vit.checkpoints.releases import find_release
from keras_vit.demo import digit_model
from keras_vit.zoo import create_model, list_models, list_weights

_KEPT = 2  # models in memory beside the given one
_TRAINED_HERE = "trained here"
_IMAGE_SIZE = (224, 224)


class Offers:
    """What can be chosen.

    Args:
        model: a classifier of keras_vit that stands first, or None.
        weights: what its weights are called.
    """

    def __init__(self, model=None, weights="as given"):
        self._given = None if model is None else (model.config.name, weights, model)
        self._opened = {}

    def models(self):
        """Names of the models, the first one chosen at the start."""
        given = [] if self._given is None else [self._given[0]]
        published = [name for name in list_models() if list_weights(name)]
        return list(dict.fromkeys([*given, digit_model.NAME, *published]))

    def weights(self, name):
        """Names of the weights of a model, the first one chosen at the start: those that know ImageNet's classes."""
        checks.check_choice("model", name, self.models())
        given = [self._given[1]] if self._is_given(name) else []
        if name == digit_model.NAME:
            return [*given, _TRAINED_HERE]
        published = list_weights(name) if name in list_models() else []
        return [*given, *sorted(published, key=lambda weights: "imagenet2012" not in weights)]

    def has_digits(self, name, weights):
        """Whether a choice reads digits of 8 x 8 pixels, so that images need `digit_image`."""
        if self._is_given(name, weights):
            preprocessing = self._given[2].preprocessing
            return preprocessing.image_size == digit_model.SIZE and preprocessing.channels == 1
        return name == digit_model.NAME

    def wait(self, name, weights):
        """Returns the sentence that tells what `open` will be busy with, or an empty string."""
        if self._is_given(name, weights) or (name, weights) in self._opened:
            return ""
        if name != digit_model.NAME:
            return f"{name} is being loaded; its file is downloaded first if it is not in Keras's cache yet."
        if digit_model.digit_file().is_file():
            return ""
        return "The model learns to read handwritten digits first, in less than a minute; this happens once."

    def open(self, name, weights):
        """Returns the model of a choice, from memory, Keras's cache or its publisher.

        Raises:
            ValueError: on a choice that is not offered.
            ImportError, OSError: as `create_model` and `open_digit_model`.
        """
        checks.check_choice("weights", weights, self.weights(name))
        if self._is_given(name, weights):
            return self._given[2]
        if (name, weights) not in self._opened:
            model = _open(name, weights)
            while len(self._opened) >= _KEPT:
                self._opened.pop(next(iter(self._opened)))
            self._opened[name, weights] = model
        return self._opened[name, weights]

    def _is_given(self, name, weights=None):
        return self._given is not None and self._given[0] == name and weights in (None, self._given[1])


def _open(name, weights):
    if name == digit_model.NAME:
        return digit_model.open_digit_model()
    return create_model(name, weights=weights, classes=find_release(name, weights, _IMAGE_SIZE).classes)
