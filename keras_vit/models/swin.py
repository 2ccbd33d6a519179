"""SwinTransformer: the hierarchical transformer of arXiv 2103.14030 as a functional Keras model."""

import keras
import numpy as np

from keras_vit.config import SwinConfig
from keras_vit.layers.embedding import PatchEncoder
from keras_vit.layers.forms import LayerNorm
from keras_vit.layers.pooling import GlobalAveragePooling
from keras_vit.layers.swin_block import PatchMerging, SwinBlock
from keras_vit.models.base import ImageModel, make_head

# fields of the config that are arguments of every block
_OF_EACH_BLOCK = ("dropout_rate", "qkv_bias", "gelu", "epsilon", "dtype")


@keras.saving.register_keras_serializable(package="keras_vit")
class SwinTransformer(ImageModel):
    """Build a Swin Transformer (arXiv 2103.14030).

    It consists of patches, stages of windowed blocks, pooling and a head. The layers, and therefore the intermediates
    `model.get_layer(NAME).output`, are `patch_encoder`, `patch_map`, `patch_norm` and `dropout`; for each stage s from
    1 its blocks `stage_{s}_block_00` and so on, its output `stage_{s}` and `stage_{s}_downsample`; then `encoder_norm`,
    `encoder_tokens`, `pooling`, `head`. From `patch_map` to `encoder_norm` the outputs are maps (batch, rows, columns,
    dim). The last stage has no `downsample`; `dropout` and `head` exist only if the config needs them.

    Args:
        config: a `SwinConfig`.
        preprocessing: `Preprocessing` of its images; None uses the official one of ViT at the config's image size,
            with values in [-1, 1]. Constructors such as `Swin_T` use Swin's own.
        labels: sequence of class names, one per logit, or None.
        name: name of the Keras model; None uses the config's name as letters, digits and underscores.

    Shapes:
        (batch, height, width, channels), prepared as `preprocessing` describes -> logits (batch, classes); with
        `include_top=False` the features (batch, dim of the last stage).

    Raises:
        TypeError: if `config` is not a `SwinConfig`.
    """

    config_class = SwinConfig
    config: SwinConfig

    @staticmethod
    def _steps(config):
        """Yield all layers in order (section 3.1 and Fig. 3)."""
        common = {"dtype": config.dtype}
        yield PatchEncoder(config.patch_size, config.embed_dim, name="patch_encoder", **common)
        yield keras.layers.Reshape((*config.grid_size, config.embed_dim), name="patch_map", **common)
        yield LayerNorm(epsilon=config.epsilon, name="patch_norm", **common)
        if config.dropout_rate:
            yield keras.layers.Dropout(config.dropout_rate, name="dropout", **common)
        for stage in range(len(config.depths)):
            yield from _blocks(config, stage)
            yield keras.layers.Identity(name=f"stage_{stage + 1}", **common)
            if stage + 1 < len(config.depths):
                yield PatchMerging(config.epsilon, name=f"stage_{stage + 1}_downsample", **common)
        yield LayerNorm(epsilon=config.epsilon, name="encoder_norm", **common)
        yield keras.layers.Reshape((-1, config.stage_dim(len(config.depths) - 1)), name="encoder_tokens", **common)
        yield GlobalAveragePooling(name="pooling", **common)
        if config.include_top:
            yield make_head(config, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02))


def _blocks(config, stage):
    """Yield the blocks of a stage; every second one is shifted, and stochastic depth grows linearly over all stages."""
    rates = np.linspace(0.0, config.drop_path_rate, sum(config.depths))[sum(config.depths[:stage]) :]
    for index in range(config.depths[stage]):
        arguments = {name: getattr(config, name) for name in _OF_EACH_BLOCK}
        arguments |= {"shifted": index % 2 == 1, "drop_path_rate": float(rates[index])}
        arguments["name"] = f"stage_{stage + 1}_block_{index:02d}"
        yield SwinBlock(config.num_heads[stage], config.mlp_dim(stage), config.window_sizes[stage], **arguments)
