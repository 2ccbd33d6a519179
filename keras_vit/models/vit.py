"""VisionTransformer: the ViT of arXiv 2010.11929 as a functional keras model."""

import keras

from keras_vit.config import UNPOOLED_CLASSIFIERS, ViTConfig
from keras_vit.layers import (
    AddPositionEmbs,
    ClassToken,
    GlobalAveragePooling,
    MapPooling,
    PatchEncoder,
    TokenPooling,
    TransformerBlock,
)
from keras_vit.models.base import ImageModel


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ImageModel):
    """A Vision Transformer: picture -> patches -> tokens -> blocks -> pooled features -> logits.

    The layers, and so the intermediates `model.get_layer(NAME).output`, are `patch_encoder`, `class_token` (class token
    and registers), `position_embs`, `block_00` and so on, `encoder_norm`, `pooling`, `pre_logits`, `head`; those that a
    config does without are absent.

    Args:
        config: a `ViTConfig`.
        preprocessing: `Preprocessing` of its pictures; None is the official one at the config's image size.
        labels: sequence of names, one per logit, or None.
        name: name of the keras model; None takes the config's, folded to letters, digits and underscores.

    Shapes:
        (batch, height, width, channels), values as `preprocessing` gives them -> logits (batch, classes); with an
        unpooled classifier (batch, tokens, classes); with `include_top=False` the features (batch, dim).

    Raises:
        TypeError: if `config` is no `ViTConfig`.
    """

    config_class = ViTConfig

    def __init__(self, config, *, preprocessing=None, labels=None, name=None):
        if not isinstance(config, ViTConfig):
            raise TypeError(f"config must be a keras_vit.ViTConfig; got {type(config).__name__}")
        policy = keras.dtype_policies.get(config.dtype or keras.config.dtype_policy())
        config = config.resolve().replace(dtype=policy.name)
        inputs = keras.Input((*config.image_size, config.channels), name="images")
        tokens = _embed(inputs, config)
        tokens = _encode(tokens, config)
        outputs = _classify(tokens, config)
        super().__init__(inputs=inputs, outputs=outputs, name=name or model_name(config.name))
        self._describe(config, preprocessing, labels)


def model_name(variant):
    """Folds a variant's name to an identifier: `"R50+ViT-B_16"` -> `"r50_vit_b16"`."""
    return variant.replace("_", "").replace("-", "_").replace("+", "_").lower()


def _embed(images, config):
    """z_0 = [x_class; x_1 E; ...; x_N E] + E_pos, Eq. 1."""
    tokens = PatchEncoder(config.patch_size, config.hidden_dim, dtype=config.dtype, name="patch_encoder")(images)
    if config.num_prefix_tokens:
        prefix = ClassToken(config.num_class_tokens, config.num_registers, dtype=config.dtype, name="class_token")
        tokens = prefix(tokens)
    positions = AddPositionEmbs(
        config.position_embedding,
        config.grid_size,
        config.num_class_tokens,
        config.num_registers,
        dtype=config.dtype,
        name="position_embs",
    )
    tokens = positions(tokens)
    if config.dropout_rate:
        tokens = keras.layers.Dropout(config.dropout_rate, dtype=config.dtype, name="dropout")(tokens)
    return tokens


def _encode(tokens, config):
    """z_l = block(z_{l-1}), Eqs. 2 and 3; stochastic depth grows linearly from 0 to its rate at the last block."""
    for index in range(config.num_layers):
        block = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            config.dropout_rate,
            config.attention_dropout_rate,
            config.stochastic_depth_rate * index / max(config.num_layers - 1, 1),
            config.layer_scale_init,
            config.qkv_bias,
            config.qk_norm,
            config.gelu,
            config.epsilon,
            config.remat,
            dtype=config.dtype,
            name=f"block_{index:02d}",
        )
        tokens = block(tokens)
    return tokens


def _classify(tokens, config):
    """y = LN(z_L^0), Eq. 4, in its variants, then the tanh layer of pre-training and the head."""
    norm = keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=config.dtype, name="encoder_norm")
    steps = [norm]
    if config.classifier not in UNPOOLED_CLASSIFIERS:
        steps.insert(0 if config.norm_position == "after_pooling" else 1, _pooling(config))
    if config.representation_size is not None:
        pre_logits = keras.layers.Dense(
            config.representation_size,
            activation="tanh",
            kernel_initializer="lecun_normal",
            dtype=config.dtype,
            name="pre_logits",
        )
        steps.append(pre_logits)
    if config.include_top:
        steps.append(_head(config))
    for step in steps:
        tokens = step(tokens)
    return tokens


def _pooling(config):
    kwargs = {"dtype": config.dtype, "name": "pooling"}
    if config.classifier == "gap":
        return GlobalAveragePooling(config.num_prefix_tokens, **kwargs)
    if config.classifier == "map":
        prefix = config.num_prefix_tokens
        return MapPooling(config.num_heads, config.mlp_dim, prefix, config.gelu, config.epsilon, **kwargs)
    return TokenPooling(0, **kwargs)  # "token": the class token; "first": the first patch


def _head(config):
    # Kept in float32 under the mixed policies, so that neither logits nor softmax lose digits.
    return keras.layers.Dense(
        config.classes,
        activation=config.classifier_activation,
        kernel_initializer="zeros",
        dtype="float64" if config.dtype == "float64" else "float32",
        name="head",
    )
