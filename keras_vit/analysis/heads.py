"""Attention maps of the heads of a block, and a measure of how selective each head is."""

import keras
import numpy as np
import numpy.typing as npt

from keras_vit.analysis.attention import attention_batches


def head_maps(model: keras.Model, images: npt.ArrayLike, layer: str | int = -1, batch_size: int = 16) -> np.ndarray:
    """Compute the attention of each head of one block over the patches.

    Args:
        model: as in `attention_weights`.
        images: float array (images, height, width, channels), model input.
        layer: name or number of the block, -1 for the last.
        batch_size: images per batch.

    Returns:
        float64 array (images, heads, rows, columns): the attention from the token that the model's head reads, such as
        the class token, to each patch. If the head reads the mean or another pooling of the patches, it is the mean of
        the attention from all patches; with grouped attention, from each patch within its group. Attention to class,
        distillation and register tokens and to padding is left out, so a map sums to at most 1.

    Raises:
        TypeError, ValueError: as in `attention_weights`.
    """
    return np.concatenate(
        [_maps(blocks[0], weights[0]) for blocks, weights in attention_batches(model, images, [layer], batch_size)]
    )


def head_strength(maps: npt.ArrayLike) -> np.ndarray:
    """Compute how strongly the attention of each head differs from uniform attention.

    Args:
        maps: (..., rows, columns), as returned by `head_maps`.

    Returns:
        float64 array (...), in [0, 1): the total variation distance between the head's attention to patches and uniform
        attention. A head that attends to one patch of n has 1 - 1 / n; a head that attends to no patch has 0.
    """
    maps = np.asarray(maps, "float64")
    sums, even = maps.sum((-2, -1), keepdims=True), 1 / (maps.shape[-2] * maps.shape[-1])
    shares = np.divide(maps, sums, out=np.full_like(maps, even), where=sums > 0)
    return 0.5 * np.abs(shares - even).sum((-2, -1))


def _maps(block, weights):
    """Convert (images, [groups,] heads, queries, keys) to (images, heads, rows, columns)."""
    weights = weights if block.is_grouped else weights[:, None]
    is_query = block.places >= 0
    if block.read_token is not None:
        is_query = np.arange(block.places.shape[1])[None] == block.read_token
    received = np.einsum("bghqk,gq->bghk", weights, is_query / is_query.sum())
    cells = block.grid_size[0] * block.grid_size[1]
    maps = np.zeros((*received.shape[:1], received.shape[2], cells + 1))  # the last cell is for place -1
    for group, places in enumerate(block.places):
        np.add.at(maps, (slice(None), slice(None), places), received[:, group])
    return maps[..., :cells].reshape(*maps.shape[:2], *block.grid_size)
