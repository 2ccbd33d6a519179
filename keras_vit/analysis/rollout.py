"""Attention rollout: what each token owes to each patch, over all blocks (arXiv 2005.00928; Fig. 6 of 2010.11929)."""

from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt
from keras import ops

from keras_vit.analysis.attention import Layers, attention_batches
from keras_vit.analysis.blocks import LAST_GRID, attention_graph
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
    """Follow attention from the output back to the patches (arXiv 2010.11929, appendix D.8; Figs. 6 and 14).

    With A_l the attention of block l, mean over its heads, B_l is A_l + I (the residual path) with rows divided by
    their sum, and the rollout is B_L ... B_1. Shown is the row of the token that the head reads, such as the class
    token, or the mean of the patches' rows where it reads their mean or another pooling, at the patches. The paper
    says neither whether it divides the rows nor by what it scales the maps: divide a map by its largest value for its
    display.

    Args:
        model: as of `attention_weights`; or such weights, a sequence of (images, heads, tokens, tokens), first block
            first. The two blocks of an axial one follow each other. Those of a Swin must be of one stage, for its
            patches merge between stages.
        images, layers, batch_size: of a model, as of `attention_weights`; blocks are taken in the order of `layers`.
        grid_size, num_prefix_tokens: of weights: (rows, columns) of the patches, None for the square grid they form,
            and how many tokens come before them, None for a class token.
        residual: False leaves I out, and follows attention alone.

    Returns:
        float64 array (images, rows, columns): shares of the patches, which add up to 1 with those of class,
        distillation and register tokens.

    Raises:
        TypeError, ValueError: as `attention_weights`; for blocks on different grids; for weights without `images` and
            the like.
    """
    maps = []
    options = {"grid_size": grid_size, "num_prefix_tokens": num_prefix_tokens}
    if layers is None and isinstance(model, keras.Model):
        layers = LAST_GRID
    for blocks, weights in attention_batches(model, images, layers, batch_size, **options):
        *_, rolled = _products(blocks, weights, residual)
        maps.append(_shown(blocks[0], rolled))
    return np.concatenate(maps)


def rollout_by_block(model: keras.Model, images: npt.ArrayLike, batch_size: int = 16) -> dict[str, np.ndarray]:
    """Follow attention up to every block: what `attention_rollout` gives of the first block, the first two and so on.

    Attention is computed once.

    Args:
        model: as of `attention_weights`. Of a Swin, the blocks of its last stage are followed.
        images, batch_size: as of `attention_weights`.

    Returns:
        Dict from the name of a block to the float64 array (images, rows, columns) of the rollout that ends with it,
        in the order of the blocks; the last is that of `attention_rollout`.

    Raises:
        TypeError, ValueError: as `attention_rollout`.
    """
    maps: dict[str, list[np.ndarray]] = {}
    for blocks, weights in attention_batches(model, images, LAST_GRID, batch_size):
        for block, rolled in zip(blocks, _products(blocks, weights, residual=True), strict=True):
            maps.setdefault(block.name, []).append(_shown(block, rolled))
    return {name: np.concatenate(parts) for name, parts in maps.items()}


def rollout_model(model: keras.Model) -> keras.Model:
    """Build a model from images to their attention rollout, to be called or exported.

    Args:
        model: as of `attention_weights`, with global attention: plain, hybrid or distilled.

    Returns:
        A keras model that gives what `attention_rollout` gives, (batch, rows, columns), in float32.

    Raises:
        TypeError: if `model` is no keras model.
        ValueError: if it has no blocks or such that attend in groups.
    """
    graph, blocks = attention_graph(model)
    if any(block.is_grouped for block in blocks):
        raise ValueError(
            "model must have blocks with global attention, as plain, hybrid and distilled ViTs do; "
            f"{model.name} attends within rows, columns or windows"
        )
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


def _products(blocks, weights, residual):
    """Yield B_1, B_2 B_1 and so on, each (images, tokens, tokens)."""
    _check_one_grid(blocks)
    rolled = None
    for block, attention in zip(blocks, weights, strict=True):
        mixed = _token_to_token(block, attention)
        if residual:
            mixed = mixed + np.eye(mixed.shape[-1])
        mixed = mixed / mixed.sum(-1, keepdims=True)
        rolled = mixed if rolled is None else mixed @ rolled
        yield rolled


def _check_one_grid(blocks):
    grids = list(dict.fromkeys(block.grid_size for block in blocks))
    if len(grids) > 1:
        raise ValueError(
            "layers must be blocks on one grid of patches for a rollout, such as those of one stage of a Swin; "
            f"{', '.join(block.name for block in blocks)} are on {', '.join(f'{r} x {c}' for r, c in grids)}"
        )


def _token_to_token(block, weights):
    """Mean over the heads as (images, tokens, tokens); of groups, each token attends to those of its own."""
    if not block.is_grouped:
        return weights.mean(1, dtype="float64")
    mean = weights.mean(2, dtype="float64")  # (images, groups, queries, keys)
    cells = block.grid_size[0] * block.grid_size[1]
    full = np.zeros((len(mean), cells + 1, cells + 1))  # the last for padding, place -1
    for group, places in enumerate(block.places):
        full[:, places[:, None], places[None]] = mean[:, group]
    return full[:, :cells, :cells]


def _shown(block, rollout):
    """(images, tokens, tokens) -> (images, rows, columns)"""
    prefix = rollout.shape[-1] - block.grid_size[0] * block.grid_size[1]
    row = rollout[:, prefix:].mean(1) if block.read_token is None else rollout[:, block.read_token]
    return row[:, prefix:].reshape(-1, *block.grid_size)
