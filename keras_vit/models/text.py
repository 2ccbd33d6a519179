"""text_tower: the text tower of a CLIP or SigLIP, made of the blocks of a Vision Transformer."""

import keras
import numpy as np
from keras import ops

from keras_vit.config.text import TextConfig
from keras_vit.layers import AddPositionEmbs, TransformerBlock
from keras_vit.layers.attend import EXCLUDED


def text_tower(config: TextConfig) -> keras.Model:
    """Build the text tower of a CLIP (arXiv 2103.00020, section 2.4) or SigLIP (arXiv 2303.15343), in float32.

    Its layers are `token_embedding`, `position_embs`, `block_00` and so on, `encoder_norm`, `pooling`, `projection`.

    Args:
        config: a `TextConfig`.

    Shapes:
        dict of `ids`, integers (batch, context_length) -> (batch, projection_dim), not normalised
    """
    length, own = config.context_length, "float32"
    ids = keras.Input((length,), dtype="int32", name="ids")
    tokens = keras.layers.Embedding(config.vocab_size, config.hidden_dim, dtype=own, name="token_embedding")(ids)
    tokens = AddPositionEmbs("learned", (length, 1), 0, dtype=own, name="position_embs")(tokens)
    given = {}
    if config.causal:
        later = np.triu(np.ones((1, length, length), "float32"), 1)
        given["attention_bias"] = ops.convert_to_tensor(EXCLUDED * later)
    for index in range(config.num_layers):
        tokens = TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            gelu=config.gelu,
            epsilon=config.epsilon,
            dtype=own,
            name=f"block_{index:02d}",
        )(tokens, **given)
    tokens = keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=own, name="encoder_norm")(tokens)
    if config.pooling == "last":
        pooled = tokens[:, -1]
    else:
        marks = ids if config.end_token is None else ops.cast(ops.equal(ids, config.end_token), "int32")
        pooled = ops.take_along_axis(tokens, ops.argmax(marks, axis=-1)[:, None, None], axis=1)[:, 0]
    pooled = keras.layers.Identity(dtype=own, name="pooling")(pooled)
    dense = keras.layers.Dense(config.projection_dim, use_bias=config.projection_bias, dtype=own, name="projection")
    return keras.Model({"ids": ids}, dense(pooled), name="text_tower")
