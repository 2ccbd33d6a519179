"""text_tower: the text tower of a CLIP or SigLIP, made of the blocks of a Vision Transformer."""

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
    blocks = [
        TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            gelu=config.gelu,
            epsilon=config.epsilon,
            dtype="float32",
            name=f"block_{index:02d}",
        )
        for index in range(config.num_layers)
    ]
    width, projection = config.hidden_dim, {"use_bias": config.projection_bias, "name": "projection"}
    layers = [
        keras.layers.Embedding(config.vocab_size, width, dtype="float32", name="token_embedding"),
        AddPositionEmbs("learned", (config.context_length, 1), 0, dtype="float32", name="position_embs"),
        *blocks,
        keras.layers.LayerNormalization(epsilon=config.epsilon, dtype="float32", name="encoder_norm"),
        keras.layers.Dense(config.projection_dim, dtype="float32", **projection),
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
    names = ["token_embedding", "position_embs", *(f"block_{index:02d}" for index in range(config.num_layers))]
    return _connected(config, [tower.get_layer(name) for name in (*names, "encoder_norm", "projection")], length)


def _connected(config, layers, length):
    embedding, positions, *blocks, norm, projection = layers
    ids = keras.Input((length,), dtype="int32", name="ids")
    tokens, given = embedding(ids), {}
    tokens = positions(tokens) if length == config.context_length else tokens + positions.table()[:, :length]
    if config.causal:
        later = np.triu(np.ones((1, length, length), "float32"), 1)
        given["attention_bias"] = ops.convert_to_tensor(EXCLUDED * later)
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
