"""keras-cv's augmentation layers by name; the only module that uses keras-cv."""

import functools
import inspect

import keras
import tensorflow as tf

from keras_vit import checks
from keras_vit.versions import import_optional

_SCALE = (0, 255)  # value range of every operation
_NEED_LABELS = ("CutMix", "FourierMix", "MixUp", "Mosaic")


def build(layer_name, /, *args, **kwargs):
    """Return a layer of `keras_cv.layers` as a function of kind `image` (see `Operation`).

    If the layer has an argument `value_range`, it is set to (0, 255). The results are clipped to [0, 255].

    keras-cv draws from a stateful generator, and parallel calls draw from it in any order. The result for an image
    therefore does NOT depend on the seed and its running number alone, even with the layer's own `seed`, and an
    interrupted run does not resume with the same random numbers. The operations of this package do not have this
    problem.

    Args:
        layer_name: a layer that changes only images, such as "RandomCutout".
        *args, **kwargs: arguments of the layer.

    Raises:
        ImportError: if keras-cv is not installed.
        ValueError: if the layer does not exist or its arguments are wrong.
    """
    layer, policy = _find(layer_name), keras.config.dtype_policy()
    signature = inspect.signature(layer)
    if "value_range" in signature.parameters and not args:
        kwargs = {"value_range": _SCALE, **kwargs}
    try:
        value_range = signature.bind(*args, **kwargs).arguments.get("value_range", _SCALE)
        if value_range not in (_SCALE, list(_SCALE)):
            raise ValueError(f"value_range must be (0, 255) here; got value_range={value_range!r}")
        keras.config.set_dtype_policy("float32")  # also for inner layers: pixel values need more than bfloat16
        made = layer(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"keras_cv.{layer_name} got wrong arguments: {error}") from error
    finally:
        keras.config.set_dtype_policy(policy)
    call = tf.function(functools.partial(made, training=True))  # with AutoGraph, which some layers need

    def apply(image, seed):
        del seed  # keras-cv uses its own generator
        changed = tf.cast(call(image[None])[0], tf.float32)
        return tf.ensure_shape(tf.clip_by_value(changed, *map(float, _SCALE)), image.shape)

    return apply


def _find(name):
    """Return a keras-cv layer that changes images and keeps their shape."""
    keras_cv = import_optional("keras_cv", "augmentations named keras_cv.* need keras-cv: pip install keras-cv")
    if name in _NEED_LABELS:
        raise ValueError(f"keras_cv.{name} changes labels too; use mix=('mixup(0.2)',) or mix=('cutmix(1.0)',)")
    bases = (keras_cv.layers.BaseImageAugmentationLayer, keras_cv.layers.VectorizedBaseImageAugmentationLayer)
    layers = {
        key: layer
        for key, layer in vars(keras_cv.layers).items()
        if isinstance(layer, type) and issubclass(layer, bases) and layer not in bases and key not in _NEED_LABELS
    }
    if name not in layers:
        hint = checks.suggestion(name, layers, most=3, cutoff=0.5) or f"; there are {', '.join(sorted(layers))}"
        raise ValueError(f"keras_cv has no layer {name!r} that changes images{hint}")
    return layers[name]
