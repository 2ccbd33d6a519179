"""BiTResNet, the BiT classifiers, and `resnet_stem`, the ResNet below a hybrid Vision Transformer."""

from collections.abc import Sequence

import keras
from keras import ops

from keras_vit.config import BiTConfig, Preprocessing
from keras_vit.layers.bottleneck import GROUPS
from keras_vit.layers.resnet_stage import ResNetStage
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.models.base import ImageModel, make_head, model_name, with_standardisation

# max_pool_padding of BiTConfig -> the value around the map. ONNX Runtime 1.31 takes a border of just 0 for that of its
# own max-pool, which is minus infinity, and exported models gave other logits: zero is a hair below it.
_POOL_BORDERS = {"zeros": -1e-30, "minus_infinity": float("-inf")}


def resnet_stem(images, config, dtype=None):
    """Builds the ResNet whose feature map a hybrid cuts into patches (arXiv 2010.11929, section 3.1).

    Its layers are `root_conv`, `root_norm`, `root_relu`, `root_pool`, `stage_1` and so on.

    Args:
        images: KerasTensor (batch, height, width, channels).
        config: a `ResNetConfig`.
        dtype: Keras dtype policy of its layers; None is the global policy.

    Returns:
        KerasTensor (batch, rows, columns, features), rows and columns as `config.feature_size` says. Without stages the
        root has 64 * width_factor features; the last stage has 256 * width_factor * 2^(stages - 1).
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
    """A BiT ResNet-v2 (arXiv 1912.11370): root -> pre-activation stages -> pooled features -> logits.

    The layers, and so the intermediates `model.get_layer(NAME).output`, are `root_conv`, `root_pool`, `stage_1` and so
    on, `final_norm`, `final_relu`, `pooling` and `head`, which `include_top=False` does without.

    Args:
        config: a `BiTConfig`.
        preprocessing: `Preprocessing` of its images; None is the official one at the config's image size.
        labels: sequence of names, one per logit, or None.
        name: name of the keras model; None takes the config's, folded to letters, digits and underscores.

    Shapes:
        (batch, height, width, channels), values as `preprocessing` gives them -> logits (batch, classes); with
        `include_top=False` the features (batch, 256 * width_factor * 2^(stages - 1)).

    Raises:
        TypeError: if `config` is no `BiTConfig`.
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
    """7 x 7 and max-pool, both of stride 2; BiT pads every side alike where SAME would not."""
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
    """The stages of a config; the width doubles and the sides halve with each after the first."""
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
