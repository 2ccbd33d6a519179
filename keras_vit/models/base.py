"""ImageModel: what every model of the package shares (config, preprocessing, labels, saving), and copies of a model."""

import collections.abc
import warnings

import h5py
import keras

from keras_vit import checks
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config import Preprocessing
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers.position_grid import RESIZE_METHODS


class ImageModel(keras.Model):
    """A functional keras model that knows its config, the preprocessing of its pictures and its labels.

    Subclasses name their `config_class` and build inputs and outputs from a config.
    """

    config_class = None

    def _describe(self, config, preprocessing, labels):
        """Attaches the description; called once, after the functional model exists."""
        self._config = config
        self.preprocessing = preprocessing
        self.labels = labels

    @property
    def config(self):
        """The frozen config this model was built from; every default in it is stated."""
        return self._config

    @property
    def preprocessing(self):
        """`Preprocessing` of the pictures; its size is the model's. Setting None takes the official one."""
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value):
        config = self._config
        if value is None:
            channels = _picture_channels(config)
            value = Preprocessing(size=config.image_size, mean=(0.5,) * channels, std=(0.5,) * channels)
        if not isinstance(value, Preprocessing):
            raise TypeError(f"preprocessing must be a keras_vit.Preprocessing or None; got {value!r}")
        if value.image_size != config.image_size:
            raise ValueError(
                f"preprocessing must give pictures of the model's image_size {config.image_size}; "
                f"got {value.image_size} (Preprocessing.at(image_size) changes it)"
            )
        if value.channels != _picture_channels(config):
            raise ValueError(
                f"preprocessing must give pictures of the model's {_picture_channels(config)} channels; "
                f"got {value.channels}"
            )
        self._preprocessing = value

    @property
    def labels(self):
        """Tuple of names, one per logit, or None."""
        return self._labels

    @labels.setter
    def labels(self, value):
        if value is not None:
            is_sequence = isinstance(value, collections.abc.Iterable) and not isinstance(value, str)
            if not is_sequence or not all(isinstance(label, str) for label in value):
                raise TypeError(f"labels must be a sequence of strings or None; got {value!r}")
            value = tuple(value)
            if len(value) != self._config.classes:
                raise ValueError(f"labels must name each of the {self._config.classes} classes; got {len(value)} names")
        self._labels = value

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """Loads a `.weights.h5` file as `keras.Model.load_weights` does, also one of another image size.

        The position table is resized. The optimizer's slots of that table cannot be: where the file holds an
        optimizer for another image size, this model keeps the optimizer state it has, with a warning.
        """
        optimizer = getattr(self, "optimizer", None)
        if optimizer is None or not optimizer.built or not _has_other_slots(filepath, self):
            return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        warnings.warn(
            f"{filepath} holds the optimizer of another image size; the weights are loaded, its slots are not",
            stacklevel=2,
        )
        try:
            self.optimizer = None
            return super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        finally:
            self.optimizer = optimizer

    def get_config(self):
        return {
            "config": self._config.to_dict(),
            "preprocessing": self._preprocessing.to_dict(),
            "labels": None if self._labels is None else list(self._labels),
            "name": self.name,
            "frozen_layers": [layer.name for layer in self.layers if not layer.trainable],
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = cls(
            cls.config_class.from_dict(config["config"]),
            preprocessing=Preprocessing.from_dict(config["preprocessing"]),
            labels=config["labels"],
            name=config["name"],
        )
        for name in config["frozen_layers"]:
            model.get_layer(name).trainable = False
        return model


def _picture_channels(config):
    return 1 if config.channels == 1 else 3


def clone(model):
    """Returns a copy of an `ImageModel`: same class, config, preprocessing, labels and weights, sharing nothing."""
    return _copy(model, _check_model(model).get_config(), "align_corners")


def resize(model, image_size, method="align_corners"):
    """Returns the same weights as a model for another input size; only the position table changes.

    Args:
        model: a model of this package, such as `VisionTransformer`.
        image_size: (height, width) in pixels or one integer, divisible by the patch size.
        method: how the position table is resized, see `resize_position_embedding`.
    """
    checks.check_choice("method", method, RESIZE_METHODS)
    description = _check_model(model).get_config()
    config = model.config.replace(image_size=image_size)
    description["config"] = config.to_dict()
    description["preprocessing"] = model.preprocessing.at(config.image_size).to_dict()
    return _copy(model, description, method)


def _copy(model, description, method):
    copied, pending = build_deferred(lambda: type(model).from_config(description))
    initialise(pending, {id(variable): _zeros(variable) for variable in copied.weights})
    for new, old in zip(copied.layers, model.layers, strict=True):
        if isinstance(new, AddPositionEmbs) and new.weights:
            new.load_table(keras.ops.convert_to_numpy(old.embedding), old.built_grid, method)
        else:
            new.set_weights(old.get_weights())
    return copied


def _check_model(model):
    if not isinstance(model, ImageModel):
        raise TypeError(f"model must be a model of keras_vit; got {type(model).__name__}")
    return model


def _zeros(variable):
    return lambda: keras.ops.zeros(variable.shape, variable.dtype)


def _has_other_slots(filepath, model):
    """Whether the file holds optimizer variables that do not fit those of `model`: another position table's."""
    if not str(filepath).endswith(".weights.h5"):
        return False
    with h5py.File(filepath, "r") as file:
        slots = file.get("optimizer/vars")
        if slots is None or len(slots) != len(model.optimizer.variables):
            return False
        if any(slots[str(i)].shape != tuple(v.shape) for i, v in enumerate(model.optimizer.variables)):
            return True
        # Tables of 4 x 4 and of 2 x 8 patches have equal shapes.
        grid = file.get("layers/add_position_embs/vars/grid")
        built = [layer.built_grid for layer in model.layers if isinstance(layer, AddPositionEmbs)]
        return grid is not None and tuple(grid[()]) not in built
