"""Encoder: the config of a model of this package, the preprocessing of its images, and its class names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_vit.config import ImageConfig, Preprocessing

STANDARDISATION = "preprocessing"  # the layer of a model with include_preprocessing


class Encoder:
    """Hold config, preprocessing and labels of a model of this package.

    It is a mixin of `ImageModel`. `encoders.py` finds the models of this package inside another model by this class.
    """

    _config: Any  # an `ImageConfig`
    get_layer: Any

    @property
    def config(self) -> ImageConfig:
        """Return the frozen config of the model, with all defaults filled in."""
        return self._config

    @property
    def preprocessing(self) -> Preprocessing:
        """Return or set the `Preprocessing` of the images; None sets the official one.

        Its size is the model's image size; a model for images of any size accepts every size. With
        `include_preprocessing`, its `in_model` is True, and setting it changes the mean and std of the layer
        `preprocessing`.
        """
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        config = self._config
        channels, source = 1 if config.channels == 1 else 3, "default" if value is None else "stated"
        patch_size = config.field("patch_size") if config.field("embedding.images_per_sequence") else None
        if value is None:
            half = (0.5,) * channels
            value = Preprocessing(size=config.fixed_size or config.usual_size, mean=half, std=half)
            value = value if patch_size is None else value.native(patch_size)
        if not isinstance(value, Preprocessing):
            raise TypeError(f"preprocessing must be a keras_vit.Preprocessing or None; got {value!r}")
        wanted = config.fixed_size or value.image_size, channels, patch_size
        if (value.image_size, value.channels, value.patch_size) != wanted:
            raise ValueError(
                f"preprocessing must give images of the model's image_size {config.image_size} and {channels} "
                f"channels, and patch_size={patch_size}; got {value.image_size}, {value.channels} and "
                f"{value.patch_size} (Preprocessing.at and Preprocessing.native change them)"
            )
        self._preprocessing = value.replace(in_model=config.include_preprocessing)
        self._preprocessing_source = source
        if config.include_preprocessing:
            layer, (scale, offset) = self.get_layer(STANDARDISATION), standardisation(value)
            if (layer.scale, layer.offset) != (scale, offset):
                layer.scale, layer.offset = scale, offset
                # Compiled functions hold the old values.
                self.train_function = self.test_function = self.predict_function = None

    @property
    def preprocessing_source(self) -> str:
        """Return how `preprocessing` is known: `"stated"`, `"default"` or `"assumed"`.

        It is `"stated"` if the weights or the user set it, and `"assumed"` if the weights file does not state it and
        comes from a library whose models use different preprocessings. Otherwise it is `"default"`.
        """
        return self._preprocessing_source

    def assume_preprocessing(self) -> None:
        """Mark the preprocessing as assumed: it may not be the one the weights need."""
        self._preprocessing_source = "assumed"

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Return or set the class names, one per logit, as a tuple, or None."""
        return self._labels

    @labels.setter
    def labels(self, value: Sequence[str] | None) -> None:
        if value is not None:
            is_sequence = isinstance(value, Iterable) and not isinstance(value, (str, set, frozenset, Mapping))
            if not is_sequence or not all(isinstance(label, str) for label in value):
                raise TypeError(f"labels must be a sequence of strings or None; got {value!r}")
            value = tuple(value)
            if len(value) != self._config.classes:
                raise ValueError(f"labels must name each of the {self._config.classes} classes; got {len(value)} names")
        self._labels = value


def standardisation(preprocessing):
    """Return scale and offset for `Rescaling`, from pixel values in [0, 255] to (x / 255 - mean) / std."""
    mean, std = preprocessing.mean, preprocessing.std
    # Of rank 3, because Keras reshapes vectors under image_data_format="channels_first".
    scale, offset = [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
    return [[scale]], [[offset]]


def is_projection(model):
    """Return whether the head of a model is a projection to features, as that of a CLIP, and not a classifier."""
    config = model.config
    return config.include_top and config.field("head.bias") is False and not config.field("head.normalize")


def check_model(model):
    """Return `model` if it is a model of this package; otherwise raise `TypeError`."""
    if not isinstance(model, Encoder):
        raise TypeError(f"model must be a model of keras_vit; got {described(model)}")
    return model


def described(model):
    """Return a description of an object that is not a model of this package, with a hint if one is known."""
    layers = model.layers if isinstance(model, keras.Model) else ()
    name = type(model).__name__
    inside = [layer.name for layer in layers if isinstance(layer, Encoder)]
    if inside:
        return f"{name} around one (give model.get_layer({inside[0]!r}))"
    if any(type(layer).__module__.startswith("keras_vit.layers") for layer in layers):
        return f"{name} with keras_vit layers, as from keras.models.clone_model (keras_vit.clone(model) copies a model)"
    return name
