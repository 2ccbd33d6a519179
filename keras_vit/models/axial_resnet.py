"""AxialResNet: the ResNet with axial attention that arXiv 2010.11929 compares AxialViT with."""

import keras

from keras_vit.config import AxialResNetConfig
from keras_vit.layers.axial_resnet import HE_NORMAL, AxialStage, batch_norm
from keras_vit.models.base import ImageModel, make_head


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialResNet(ImageModel):
    """Build a ResNet with axial attention (arXiv 2003.07853; 2010.11929, D.6).

    Attention along the height, then the width replaces each 3 x 3 convolution. The widths are those of
    csrhddlam/axial-deeplab (`axialnet.py`): with a width factor of 1, the attention of stage 1 has 128 channels and
    that of each further stage twice as many; the output of a stage has twice the channels of its attention. Every stage
    but the first halves the sides. The root uses TensorFlow's SAME padding, whereas that code pads all sides alike. The
    relative positions of each attention depend on the size of its map.

    With several replicas of tf.distribute, each batch normalisation uses the rows of its own replica and keeps its own
    moving statistics. Keras's `synchronized=True` is not used: it supports TensorFlow only and computes the variance
    less exactly.

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
        yield keras.layers.Conv2D(
            config.width,
            7,
            strides=2,
            padding="same",
            use_bias=False,
            data_format="channels_last",
            kernel_initializer=keras.initializers.VarianceScaling(**HE_NORMAL),
            name="root_conv",
            **common,
        )
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
