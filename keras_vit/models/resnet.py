"""BiTResNet, the BiT classifiers, and `resnet_stem`, the ResNet stem of a hybrid Vision Transformer."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_vit.config import BiTConfig, Preprocessing
from keras_vit.layers.bottleneck import GROUPS, ResNetStage
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.models.base import ImageModel, make_head, model_name, with_standardisation

# max_pool_padding of BiTConfig -> padding value. ONNX Runtime 1.31 replaces a zero padding by the minus infinity of its
# own max-pool, which changes the logits of exported models; a tiny negative value avoids this.
_POOL_BORDERS = {"zeros": -1e-30, "minus_infinity": float("-inf")}


def resnet_stem(images, config, dtype=None):
    """Build the ResNet stem of a hybrid (arXiv 2010.11929, section 3.1).

    Its layers are `root_conv`, `root_norm`, `root_relu`, `root_pool`, `stage_1` and so on.

    Args:
        images: KerasTensor (batch, height, width, channels).
        config: a `ResNetConfig`.
        dtype: Keras dtype policy of its layers; None uses the global policy.

    Returns:
        KerasTensor (batch, rows, columns, features), with the rows and columns of `config.feature_size`. The root alone
        has 64 * width_factor features; the last stage has 256 * width_factor * 2^(stages - 1).
    """
    config = config.resolve()
    epsilons = (config.std_epsilon, config.std_form)
    root = StdConv2D(config.width, 7, 2, "same", *epsilons, dtype=dtype, name="root_conv")
    steps = [
        root,
        _norm(config, dtype, "root_norm"),
        keras.layers.ReLU(dtype=dtype, name="root_relu"),
        # Keras pads the max-pool with minus infinity.
        keras.layers.MaxPooling2D(3, 2, "same", data_format="channels_last", dtype=dtype, name="root_pool"),
        *_stages("post_norm", config, epsilons, dtype),
    ]
    for step in steps:
        images = step(images)
    return images


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTResNet(ImageModel):
    """Build a BiT ResNet-v2 (arXiv 1912.11370).

    It consists of a root, pre-activation stages, pooling and a head. The layers, and therefore the intermediates
    `model.get_layer(NAME).output`, are `root_conv`, `root_pool`, `stage_1` and so on, `final_norm`, `final_relu`,
    `pooling`, and `head` unless `include_top=False`.

    Args:
        config: a `BiTConfig`.
        preprocessing: `Preprocessing` of its images; None uses the official one at the config's image size.
        labels: sequence of class names, one per logit, or None.
        name: name of the Keras model; None uses the config's name as letters, digits and underscores.

    Shapes:
        (batch, height, width, channels), prepared as `preprocessing` describes -> logits (batch, classes); with
        `include_top=False` the features (batch, 256 * width_factor * 2^(stages - 1)).

    Raises:
        TypeError: if `config` is not a `BiTConfig`.
    """

    config_class = BiTConfig
    config: BiTConfig

    def __init__(
        self,
        config: BiTConfig,
        *,
        preprocessing: Preprocessing | None = None,
        labels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        config = self._check_config(config)
        inputs = keras.Input((*config.image_size, config.channels), name="images")
        outputs = _classify(_body(_root(with_standardisation(inputs, config), config), config), config)
        super().__init__(inputs=inputs, outputs=outputs, name=name or model_name(config.name))
        self._describe(config, preprocessing, labels)


def _root(images, config):
    """Apply the 7 x 7 convolution and the max-pool, both of stride 2; BiT pads all sides alike, unlike SAME."""
    conv = StdConv2D(config.width, 7, 2, "valid", config.std_epsilon, "variance", dtype=config.dtype, name="root_conv")
    pool = keras.layers.MaxPooling2D(3, 2, "valid", data_format="channels_last", dtype=config.dtype, name="root_pool")
    images = conv(_pad(images, 3))
    return pool(_pad(images, 1, _POOL_BORDERS[config.max_pool_padding]))


def _body(images, config):
    for stage in _stages("pre_activation", config, (config.std_epsilon, "variance"), config.dtype):
        images = stage(images)
    return images


def _classify(images, config):
    steps = [
        _norm(config, config.dtype, "final_norm"),
        keras.layers.ReLU(dtype=config.dtype, name="final_relu"),
        keras.layers.GlobalAveragePooling2D("channels_last", dtype=config.dtype, name="pooling"),
    ]
    if config.include_top:
        steps.append(make_head(config))
    for step in steps:
        images = step(images)
    return images


def _stages(order, config, epsilons, dtype):
    """Return the stages of a config; after the first, each doubles the width and halves the sides."""
    return [
        ResNetStage(
            order,
            config.width * 2**index,
            num_units,
            1 if index == 0 else 2,
            config.gn_epsilon,
            *epsilons,
            dtype=dtype,
            name=f"stage_{index + 1}",
        )
        for index, num_units in enumerate(config.stage_sizes)
    ]


def _norm(config, dtype, name):
    return keras.layers.GroupNormalization(GROUPS, epsilon=config.gn_epsilon, dtype=dtype, name=name)


def _pad(images, amount, value=0.0):
    return ops.pad(images, ((0, 0), (amount, amount), (amount, amount), (0, 0)), constant_values=value)
