"""Attention rollout: the contribution of each patch over all blocks (arXiv 2005.00928; Fig. 6 of 2010.11929)."""

import math
from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_vit.analysis.attention import LAST_GRID, Layers, attention_batches, attention_graph
from keras_vit.typing import Size, Tensor


def attention_rollout(
    model: keras.Model | Sequence[npt.ArrayLike],
    images: npt.ArrayLike | None = None,
    layers: Layers = None,
    batch_size: int = 16,
    *,
    grid_size: Size | None = None,
    num_prefix_tokens: int | None = None,
    residual: bool = True,
) -> np.ndarray:
    """Compute attention rollout (arXiv 2010.11929, appendix D.8; Figs. 6 and 14).

    It follows attention from the output back to the patches.

    A_l is the attention of block l, averaged over its heads. B_l is A_l + I (the residual connection) with rows divided
    by their sum, and the rollout is B_L ... B_1. The result is the rollout's row for the token that the head
    reads, such as the class token, restricted to the columns of the patches. If the head reads the mean or another
    pooling of the patches, it is the mean of the rows of the patches. The paper does not state whether it normalises
    the rows, nor how it scales the maps: divide a map by its maximum to display it.

    Args:
        model: as in `attention_weights`; or weights, a sequence of (images, heads, tokens, tokens), first block first.
            An axial block counts as two consecutive blocks. The blocks of a Swin must be of one stage, because its
            patches merge between stages.
        images, layers, batch_size: for a model, as in `attention_weights`; blocks are used in the order of `layers`.
            `layers=None` uses all blocks; in a Swin, only those of the last stage.
        grid_size, num_prefix_tokens: for weights: (rows, columns) of the patches, None for a square grid, and the
            number of tokens before them, None for a class token.
        residual: False omits I and uses only attention.

    Returns:
        float64 array (images, rows, columns): shares of the patches; together with those of class, distillation and
        register tokens they sum to 1.

    Raises:
        TypeError, ValueError: as in `attention_weights`; for blocks on different grids, and for arguments that do not
            apply to a model or to weights.
    """
    if layers is None and isinstance(model, keras.Model):
        layers = LAST_GRID
    batches = attention_batches(model, images, layers, batch_size, grid_size, num_prefix_tokens)
    return _rollouts(batches, residual)[1][-1]


def rollout_by_block(model: keras.Model, images: npt.ArrayLike, batch_size: int = 16) -> dict[str, np.ndarray]:
    """Compute the attention rollout up to every block.

    The first result covers the first block, the second the first two, and so on.

    Attention is computed once.

    Args:
        model: as in `attention_weights`. In a Swin, only the blocks of the last stage are used.
        images, batch_size: as in `attention_weights`.

    Returns:
        Dict from the name of a block to the float64 array (images, rows, columns) of the rollout that ends with it,
        in the order of the blocks; the last equals `attention_rollout`.

    Raises:
        TypeError, ValueError: as in `attention_rollout`.
    """
    names, maps = _rollouts(attention_batches(model, images, LAST_GRID, batch_size), residual=True)
    return dict(zip(names, maps, strict=True))


def rollout_model(model: keras.Model) -> keras.Model:
    """Build a model from images to their attention rollout, to be called or exported.

    Args:
        model: as in `attention_weights`, with global attention: plain, hybrid or distilled.

    Returns:
        A keras model that returns the result of `attention_rollout`, (batch, rows, columns), in float32.

    Raises:
        TypeError: if `model` is not a keras model.
        ValueError: if it has no blocks, or blocks with grouped attention.
    """
    graph, blocks = attention_graph(model)
    if any(block.is_grouped for block in blocks):
        raise ValueError(f"model must have global attention; {model.name} attends within rows, columns or windows")
    places = blocks[0].places[0]
    identity = ops.eye(len(places), dtype="float32")
    rollout: Tensor = None
    for weights in graph.outputs:
        mixed = ops.mean(ops.cast(weights, "float32"), axis=1) + identity  # (batch, tokens, tokens)
        mixed = mixed / ops.sum(mixed, axis=-1, keepdims=True)
        rollout = mixed if rollout is None else ops.matmul(mixed, rollout)
    prefix = int((places < 0).sum())
    read = blocks[0].read_token
    shown = ops.mean(rollout[:, prefix:], axis=1) if read is None else rollout[:, read]  # (batch, tokens)
    maps = ops.reshape(shown[:, prefix:], (-1, *blocks[0].grid_size))
    return keras.Model(graph.input, maps, name=f"{model.name}_rollout")


def _rollouts(batches, residual):
    """Return the names of the blocks, and the maps (images, rows, columns) of the rollout up to each of them."""
    maps = []
    for blocks, weights in batches:
        grids = list(dict.fromkeys(block.grid_size for block in blocks))
        if len(grids) > 1:
            raise ValueError(
                "layers must be blocks on one grid of patches for a rollout, such as those of one stage of a Swin; "
                f"{', '.join(block.name for block in blocks)} are on {', '.join(f'{r} x {c}' for r, c in grids)}"
            )
        rolled, done = None, []
        for block, attention in zip(blocks, weights, strict=True):
            mixed = _token_to_token(block, attention)
            if residual:
                mixed = mixed + np.eye(mixed.shape[-1])
            mixed = mixed / mixed.sum(-1, keepdims=True)
            rolled = mixed if rolled is None else mixed @ rolled  # (images, tokens, tokens)
            prefix = rolled.shape[-1] - math.prod(block.grid_size)
            row = rolled[:, prefix:].mean(1) if block.read_token is None else rolled[:, block.read_token]
            done.append(row[:, prefix:].reshape(-1, *block.grid_size))
        maps.append(done)
    return [block.name for block in blocks], [np.concatenate(parts) for parts in zip(*maps, strict=True)]


def _token_to_token(block, weights):
    """Return the mean over heads, (images, tokens, tokens); with groups, tokens attend only within their group."""
    if not block.is_grouped:
        return weights.mean(1, dtype="float64")
    mean = weights.mean(2, dtype="float64")  # (images, groups, queries, keys)
    cells = math.prod(block.grid_size)
    full = np.zeros((len(mean), cells + 1, cells + 1))  # the last cell is for padding, place -1
    for group, places in enumerate(block.places):
        full[:, places[:, None], places[None]] = mean[:, group]
    return full[:, :cells, :cells]
