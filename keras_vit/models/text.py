"""text_tower: the text tower of a CLIP or SigLIP, made of the blocks of a Vision Transformer."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.config.text import TextConfig
from keras_vit.layers import AddPositionEmbs, TransformerBlock
from keras_vit.layers.attend import EXCLUDED
from keras_vit.typing import Tensor


def text_tower(config: TextConfig) -> keras.Model:
    """Build the text tower of a CLIP (arXiv 2103.00020, section 2.4) or SigLIP (arXiv 2303.15343), in float32.

    Its layers are `token_embedding`, `position_embs`, `block_00` and so on, `encoder_norm`, `pooling`, `projection`.

    Args:
        config: a `TextConfig`.

    Shapes:
        dict of `ids`, integers (batch, context_length) -> (batch, projection_dim), not normalised
    """
    own: dict[str, Any] = {"dtype": "float32"}
    of_blocks = {"gelu": config.gelu, "epsilon": config.epsilon, **own}
    heads, mlp_dim, names = config.num_heads, config.mlp_dim, _block_names(config)
    layers = [
        keras.layers.Embedding(config.vocab_size, config.hidden_dim, name="token_embedding", **own),
        AddPositionEmbs("learned", (config.context_length, 1), 0, name="position_embs", **own),
        *(TransformerBlock(heads, mlp_dim, name=name, **of_blocks) for name in names),
        keras.layers.LayerNormalization(epsilon=config.epsilon, name="encoder_norm", **own),
        keras.layers.Dense(config.projection_dim, use_bias=config.projection_bias, name="projection", **own),
    ]
    return _connected(config, layers, config.context_length)


def shortened(tower: keras.Model, config: TextConfig, length: int) -> keras.Model:
    """Return a causal text tower for texts that end early; it shares the layers of another one.

    No token after the end of a text changes its embedding, so this saves time.

    Args:
        tower: result of `text_tower`, with its weights.
        config: its `TextConfig`; `causal` must be True and `pooling` `end`.
        length: number of first tokens to read; every text must end among them.

    Returns:
        A model as `text_tower`, but of `ids` (batch, length), with the current positions of `tower`.
    """
    names = ("token_embedding", "position_embs", *_block_names(config), "encoder_norm", "projection")
    return _connected(config, [tower.get_layer(name) for name in names], length)


def _block_names(config):
    return [f"block_{index:02d}" for index in range(config.num_layers)]


def _connected(config, layers, length):
    embedding, positions, *blocks, norm, projection = layers
    ids = keras.Input((length,), dtype="int32", name="ids")
    tokens, given = embedding(ids), {}
    tokens = positions(tokens) if length == config.context_length else tokens + positions.table()[:, :length]
    if config.causal:
        later = np.triu(np.ones((1, length, length), "float32"), 1)
        given["positions"] = {"attention_bias": ops.convert_to_tensor(EXCLUDED * later)}
    for block in blocks:
        tokens = block(tokens, **given)
    tokens = norm(tokens)
    if config.pooling == "last":
        pooled = tokens[:, -1]
    else:
        pooled = ops.take_along_axis(tokens, ends(ids, config)[:, None, None], axis=1)[:, 0]
    pooled = keras.layers.Identity(dtype="float32", name="pooling")(pooled)
    return keras.Model({"ids": ids}, projection(pooled), name="text_tower")


def ends(ids: Tensor, config: TextConfig) -> Tensor:
    """Return the index of the token that ends each text.

    Args:
        ids: integers (batch, tokens).
        config: a `TextConfig`.
    """
    marks = ids if config.end_token is None else ops.cast(ops.equal(ids, config.end_token), "int32")
    return ops.argmax(marks, axis=-1)
