"""Attention of every block, and its rollout over all of them, as models that share the weights of the one looked at."""

import keras
from keras import ops

from keras_vit.compat.graph import graph_calls
from keras_vit.layers import TransformerBlock
from keras_vit.models.base import check_model


def attention_model(model):
    """Builds a model from pictures to the attention weights of every block.

    Args:
        model: a `VisionTransformer` whose blocks attend globally: plain, hybrid or distilled.

    Returns:
        A keras model that gives a list, first block first, of (batch, heads, query tokens, key tokens), after softmax
        and before dropout, at least float32. Tokens are in the model's order: class, distillation and register tokens,
        then the patches by rows.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: if it has no block with global attention.
    """
    weights = _attention(model)
    return keras.Model(model.input, weights, name=f"{model.name}_attention")


def rollout_model(model):
    """Builds a model from pictures to their attention rollout (arXiv 2010.11929, appendix D.8; arXiv 2005.00928).

    With A_l the attention of block l, mean over its heads, B_l is A_l + I (the residual path) with rows divided by
    their sum, and the rollout is B_L ... B_1: how much each token owes to each input token. Shown is the row of the
    class token, of a model without one the mean of the patches' rows, at the patches.

    Args:
        model: as for `attention_model`.

    Returns:
        A keras model that gives (batch, rows, columns), float32: shares of the patches, which add up to 1 with those of
        class, distillation and register tokens.

    Raises:
        TypeError, ValueError: as `attention_model`.
    """
    weights = _attention(model)
    config = model.config
    identity = ops.eye(weights[0].shape[-1], dtype="float32")
    rollout = None
    for block in weights:
        mixed = ops.mean(ops.cast(block, "float32"), axis=1) + identity  # (batch, tokens, tokens)
        mixed = mixed / ops.sum(mixed, axis=-1, keepdims=True)
        rollout = mixed if rollout is None else ops.matmul(mixed, rollout)
    prefix = config.num_prefix_tokens
    shown = rollout[:, 0] if config.num_class_tokens else ops.mean(rollout[:, prefix:], axis=1)  # (batch, tokens)
    maps = ops.reshape(shown[:, prefix:], (-1, *config.grid_size))
    return keras.Model(model.input, maps, name=f"{model.name}_rollout")


def _attention(model):
    calls = [call for call in graph_calls(check_model(model)) if isinstance(call.operation, TransformerBlock)]
    if not calls:
        raise ValueError(
            "model must have blocks with global attention, as plain, hybrid and distilled ViTs do; "
            f"{model.config.name} has none"
        )
    return [_AttentionScores(call.operation)(*call.arguments.args, **call.arguments.kwargs) for call in calls]


class _AttentionScores(keras.layers.Layer):
    """The attention weights of a block on what enters it; a layer, for the norms of all blocks have the same name."""

    def __init__(self, block):
        super().__init__(dtype=block.dtype_policy, name=f"{block.name}_attention")
        self.block = block
        self.built = True

    def call(self, tokens, relative_keys=None):
        return self.block.attention_scores(tokens, relative_keys)
