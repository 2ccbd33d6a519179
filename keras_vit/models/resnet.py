"""BiTResNet, AxialResNet, and `resnet_stem`, the ResNet stem of a hybrid Vision Transformer."""

import functools

import keras
from keras import ops

from keras_vit.config import AxialResNetConfig, BiTConfig
from keras_vit.layers.axial_resnet import AxialStage, batch_norm, he_normal
from keras_vit.layers.bottleneck import GROUPS, ResNetStage, StdConv2D
from keras_vit.models.base import ImageModel, make_head

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

    @staticmethod
    def _steps(config):
        """Yield all steps; unlike SAME padding, BiT pads all sides equally."""
        common = {"dtype": config.dtype}
        epsilons = (config.std_epsilon, "variance")
        yield functools.partial(_pad, amount=3)
        yield StdConv2D(config.width, 7, 2, "valid", *epsilons, name="root_conv", **common)
        yield functools.partial(_pad, amount=1, value=_POOL_BORDERS[config.max_pool_padding])
        yield keras.layers.MaxPooling2D(3, 2, "valid", data_format="channels_last", name="root_pool", **common)
        yield from _stages("pre_activation", config, epsilons, config.dtype)
        yield _norm(config, config.dtype, "final_norm")
        yield keras.layers.ReLU(name="final_relu", **common)
        yield keras.layers.GlobalAveragePooling2D("channels_last", name="pooling", **common)
        if config.include_top:
            yield make_head(config)


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialResNet(ImageModel):
    """Build a ResNet with axial attention (arXiv 2003.07853; 2010.11929, D.6).

    Attention along the height and then along the width replaces each 3 x 3 convolution. The widths are those of
    csrhddlam/axial-deeplab (`axialnet.py`): with a width factor of 1, the attention of stage 1 has 128 channels and
    that of each further stage twice as many; the output of a stage has twice the channels of its attention. Every stage
    but the first halves the sides. The root uses TensorFlow's SAME padding, whereas that code pads all sides equally.
    The relative positions of each attention depend on the size of its map.

    With several replicas of tf.distribute, each batch normalisation uses the samples of its own replica and keeps its
    own moving statistics. Keras's `synchronized=True` is not used: it supports TensorFlow only and computes the
    variance less exactly.

    The layers, and therefore the intermediates `model.get_layer(NAME).output`, are `root_conv`, `root_norm`,
    `root_relu`, `root_pool`, `stage_1` and so on, `pooling`, and `head` unless `include_top=False`.

    Args:
        config: an `AxialResNetConfig`.
        preprocessing: `Preprocessing` of its images; None uses the official one at the config's image size.
        labels: sequence of class names, one per logit, or None.
        name: name of the Keras model; None uses the config's name as letters, digits and underscores.

    Shapes:
        (batch, height, width, channels), prepared as `preprocessing` describes -> logits (batch, classes); with
        `include_top=False` the features (batch, channels of the last stage).

    Raises:
        TypeError: if `config` is not an `AxialResNetConfig`.
    """

    config_class = AxialResNetConfig
    config: AxialResNetConfig

    @staticmethod
    def _steps(config):
        """Yield all layers; the root returns (batch, ceil(height / 4), ceil(width / 4), width of the root)."""
        common = {"dtype": config.dtype}
        root = {"use_bias": False, "kernel_initializer": he_normal()}
        yield keras.layers.Conv2D(config.width, 7, 2, "same", "channels_last", name="root_conv", **root, **common)
        yield batch_norm(name="root_norm", epsilon=config.epsilon, **common)
        yield keras.layers.ReLU(name="root_relu", **common)
        yield keras.layers.MaxPooling2D(3, 2, "same", data_format="channels_last", name="root_pool", **common)
        for index, num_units in enumerate(config.stage_sizes):
            width, strides = config.stage_width(index), 1 if index == 0 else 2
            name = f"stage_{index + 1}"
            yield AxialStage(num_units, width, strides, config.num_heads, config.epsilon, name=name, **common)
        yield keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="pooling", **common)
        if config.include_top:
            yield make_head(config)


def _stages(order, config, epsilons, dtype):
    """Yield the stages of a config; after the first, each doubles the width and halves the sides."""
    for index, num_units in enumerate(config.stage_sizes):
        width, strides = config.width * 2**index, 1 if index == 0 else 2
        own = {"dtype": dtype, "name": f"stage_{index + 1}"}
        yield ResNetStage(order, width, num_units, strides, config.gn_epsilon, *epsilons, **own)


def _norm(config, dtype, name):
    return keras.layers.GroupNormalization(GROUPS, epsilon=config.gn_epsilon, dtype=dtype, name=name)


def _pad(images, amount, value=0.0):
    return ops.pad(images, ((0, 0), (amount, amount), (amount, amount), (0, 0)), constant_values=value)
