"""Attention of each head: maps, their strength, and the mean attention distance (Figs. 7 and 11 of 2010.11929)."""

import math
from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.attention import Layers, attention_batches
from keras_vit.config import BiTConfig, ResNetConfig
from keras_vit.typing import Size


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
    batches = attention_batches(model, images, [layer], batch_size)
    return np.concatenate([_map(block, weights) for (block,), (weights,) in batches])


def _map(block, weights):
    """Convert (images, [groups,] heads, queries, keys) to (images, heads, rows, columns)."""
    is_query = block.places >= 0
    if block.read_token is not None:
        is_query = np.arange(block.places.shape[1])[None] == block.read_token
    received = np.einsum("bghqk,gq->bghk", block.grouped(weights), is_query / is_query.sum())
    cells = math.prod(block.grid_size)
    maps = np.zeros((len(received), received.shape[2], cells + 1))  # the last cell is for place -1
    for group, places in enumerate(block.places):
        np.add.at(maps, (slice(None), slice(None), places), received[:, group])
    return maps[..., :cells].reshape(*maps.shape[:2], *block.grid_size)


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


def mean_attention_distance(
    model: keras.Model | Sequence[npt.ArrayLike],
    images: npt.ArrayLike | None = None,
    layers: Layers = None,
    batch_size: int = 16,
    *,
    patch_size: Size | None = None,
    grid_size: Size | None = None,
    num_prefix_tokens: int | None = None,
) -> np.ndarray:
    """Compute the mean attention distance per block and head (appendix D.7, Fig. 11).

    It is the attention weight times the distance to the key, summed over keys and averaged over queries and images.
    Distances are Euclidean between the centres of patches. Class, distillation and register tokens and the padding of a
    Swin are left out without renormalising, as in the authors' code (google-research/vision_transformer, issue 162).

    Args:
        model: as in `attention_weights`; or weights, a sequence of (images, heads, tokens, tokens). Use about 128
            images, as the paper does, because single images differ.
        images, layers, batch_size: for a model, as in `attention_weights`. Only the weights of one batch, in all
            requested blocks, are kept in memory.
        patch_size: for weights: (height, width) of a patch in pixels, or one integer.
        grid_size, num_prefix_tokens: for weights, as in `attention_rollout`.

    Returns:
        float64 array (blocks, heads), in pixels of the input of the model that contains the blocks. The number of heads
        differs between the stages of a Swin; shorter rows end in NaN.

    Raises:
        TypeError, ValueError: as in `attention_rollout`; ValueError also for weights without `patch_size`.
    """
    is_model = images is not None or isinstance(model, keras.Model)
    if is_model == (patch_size is not None):
        raise ValueError(f"patch_size must be given with weights, and only then; got patch_size={patch_size}")
    cell = None if is_model else checks.check_pair("patch_size", patch_size)
    sums: list[np.ndarray] = []
    count = 0
    for blocks, weights in attention_batches(model, images, layers, batch_size, grid_size, num_prefix_tokens):
        batch = [_summed(*pair, cell or pair[0].cell_size) for pair in zip(blocks, weights, strict=True)]
        sums = [total + part for total, part in zip(sums, batch, strict=True)] if sums else batch
        count += len(weights[0])
    means = np.full((len(sums), max(map(len, sums))), np.nan)
    for row, total in zip(means, sums, strict=True):
        row[: len(total)] = total / count
    return means


def _summed(block, weights, cell):
    """Return the distance per head, averaged over queries and summed over images."""
    is_patch = block.places >= 0
    rows, columns = np.divmod(block.places, block.grid_size[1])
    down, across = rows[:, :, None] - rows[:, None], columns[:, :, None] - columns[:, None]
    apart = np.hypot(cell[0] * down, cell[1] * across)  # (groups, queries, keys)
    apart *= is_patch[:, :, None] & is_patch[:, None]
    return np.einsum("bghqk,gqk->h", block.grouped(weights), apart) / is_patch.sum()


def receptive_field(config: BiTConfig | ResNetConfig) -> np.ndarray:
    """Compute the receptive field of each unit of a ResNet: the side in pixels.

    Each 3 x 3 convolution adds 2 cells of its input map to the side. arXiv 2010.11929 compares the attention distance
    with the receptive field. The effective receptive field is smaller.

    Args:
        config: a `BiTConfig`, or a `ResNetConfig` (the stem of a hybrid).

    Returns:
        Integer array, one value per unit from the first to the last, in pixels.

    Raises:
        TypeError: on another config, such as that of an axial ResNet, whose attention covers whole rows and columns.
    """
    if not isinstance(config, (BiTConfig, ResNetConfig)):
        raise TypeError(f"config must be a BiTConfig or a ResNetConfig; got {type(config).__name__}")
    side, step = 7, 2  # 7 x 7 convolution, stride 2
    side, step = side + 2 * step, 2 * step  # 3 x 3 pooling, stride 2
    sides = []
    for stage, units in enumerate(config.stage_sizes):
        for unit in range(units):
            side += 2 * step  # its 3 x 3 convolution
            step *= 2 if stage and not unit else 1  # this convolution has the stride
            sides.append(side)
    return np.array(sides, int)
