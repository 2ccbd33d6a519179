"""The stem of a hybrid: image -> feature map that the patches are cut from (arXiv 2010.11929, section 3.1)."""

import keras

from keras_vit.config import FeatureMapConfig, ResNetConfig
from keras_vit.models.base import with_standardisation
from keras_vit.models.resnet import resnet_stem


def apply_stem(images, config, stem):
    """Return the feature map, and the config with its size set.

    Args:
        images: symbolic images (batch, height, width, channels).
        config: a `ViTConfig`.
        stem: a custom Keras model, or None to build the stem of `config.stem`.

    Raises:
        TypeError: if `stem` is not a Keras model.
        ValueError: if both `stem` and `config.stem` are given, or `stem` does not take the images or does not end in a
            feature map.
    """
    images = with_standardisation(images, config)
    if stem is None:
        if isinstance(config.stem, FeatureMapConfig):
            raise ValueError(f"stem must be the model that config.stem describes; got None and {config.stem}")
        return (images if config.stem is None else resnet_stem(images, config.stem, config.dtype)), config
    if not isinstance(stem, keras.Model):
        raise TypeError(f"stem must be a keras model that ends in a feature map, or None; got {type(stem).__name__}")
    if getattr(stem, "inputs", None) is None:
        raise ValueError(f"stem must be a functional keras model, or a Sequential that is built; got {stem.name!r}")
    if isinstance(config.stem, ResNetConfig):
        raise ValueError(f"config.stem must be None if stem is given; got {config.stem}")
    _check_takes(stem, tuple(images.shape))
    features = stem(images)
    shape = getattr(features, "shape", ())
    if len(shape) != 4 or None in shape[1:]:
        raise ValueError(f"stem must end in one feature map (batch, rows, columns, channels); got {features}")
    return features, config.replace(stem=FeatureMapConfig(size=tuple(shape[1:3])))


def _check_takes(stem, shape):
    wanted = tuple(stem.input_shape)
    if len(wanted) != len(shape) or any(side not in (None, got) for side, got in zip(wanted, shape, strict=True)):
        raise ValueError(f"stem must take images of shape {shape}, the config's; it takes {wanted}")
