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
    length, own = config.context_length, {"dtype": "float32"}
    ids = keras.Input((length,), dtype="int32", name="ids")
    tokens = keras.layers.Embedding(config.vocab_size, config.hidden_dim, name="token_embedding", **own)(ids)
    tokens = AddPositionEmbs("learned", (length, 1), num_class_tokens=0, name="position_embs", **own)(tokens)
    given = {}
    if config.causal:
        later = np.triu(np.ones((1, length, length), "float32"), 1)
        given["attention_bias"] = ops.convert_to_tensor(EXCLUDED * later)
    of_blocks = {"gelu": config.gelu, "epsilon": config.epsilon, **own}
    for index in range(config.num_layers):
        block = TransformerBlock(config.num_heads, config.mlp_dim, name=f"block_{index:02d}", **of_blocks)
        tokens = block(tokens, **given)
    tokens = keras.layers.LayerNormalization(epsilon=config.epsilon, name="encoder_norm", **own)(tokens)
    if config.pooling == "last":
        pooled = tokens[:, -1]
    else:
        marks = ids if config.end_token is None else ops.cast(ops.equal(ids, config.end_token), "int32")
        pooled = ops.take_along_axis(tokens, ops.argmax(marks, axis=-1)[:, None, None], axis=1)[:, 0]
    pooled = keras.layers.Identity(name="pooling", **own)(pooled)
    projection = keras.layers.Dense(config.projection_dim, use_bias=config.projection_bias, name="projection", **own)(
        pooled
    )
    return keras.Model({"ids": ids}, projection, name="text_tower")
