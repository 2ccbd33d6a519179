"""How far attention reaches, in pixels (Figs. 7 and 11 of arXiv 2010.11929), and how far a convolution does."""

from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.attention import Layers, attention_batches
from keras_vit.config import BiTConfig, ResNetConfig
from keras_vit.typing import Size


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
    """Measure how far from itself a patch looks, per block and head (appendix D.7, Fig. 11).

    Over the keys the attention weight times the distance to the key is summed, then the mean taken over queries and
    images. Distances are Euclidean between the centres of patches. Class, distillation and register tokens, and the
    padding of a Swin, are left out without renormalising, as the authors do (google-research/vision_transformer,
    issue 162).

    Args:
        model: as of `attention_weights`; or such weights, a sequence of (images, heads, tokens, tokens). Take some
            128 images, as the paper does: single ones differ.
        images, layers, batch_size: of a model, as of `attention_weights`. Weights are kept for a batch alone, of all
            blocks that are asked for.
        patch_size: of weights: (height, width) of a patch in pixels, or one integer.
        grid_size, num_prefix_tokens: of weights, as of `attention_rollout`.

    Returns:
        float64 array (blocks, heads), in pixels of the input of the model that has the blocks. In a Swin, whose
        stages differ in their heads, the rows of blocks with fewer end in NaN.

    Raises:
        TypeError, ValueError: as `attention_rollout`; for weights without `patch_size`.
    """
    is_model = images is not None or isinstance(model, keras.Model)
    if is_model == (patch_size is not None):
        raise ValueError(f"patch_size must be given with weights, and only then; got patch_size={patch_size}")
    cell = None if is_model else checks.check_pair("patch_size", patch_size)
    sums: list[np.ndarray] = []
    count = 0
    options = {"grid_size": grid_size, "num_prefix_tokens": num_prefix_tokens}
    for blocks, weights in attention_batches(model, images, layers, batch_size, **options):
        batch = [
            _summed(block, attention, cell or block.cell_size) for block, attention in zip(blocks, weights, strict=True)
        ]
        sums = [total + part for total, part in zip(sums, batch, strict=True)] if sums else batch
        count += len(weights[0])
    means = np.full((len(sums), max(map(len, sums))), np.nan)
    for row, total in zip(means, sums, strict=True):
        row[: len(total)] = total / count
    return means


def _summed(block, weights, cell):
    """Distance per head, mean over the queries and summed over the images."""
    weights = weights if block.is_grouped else weights[:, None]  # (images, groups, heads, queries, keys)
    is_patch = block.places >= 0
    rows, columns = np.divmod(block.places, block.grid_size[1])
    apart = np.hypot(
        cell[0] * (rows[:, :, None] - rows[:, None]), cell[1] * (columns[:, :, None] - columns[:, None])
    )  # (groups, queries, keys)
    apart *= is_patch[:, :, None] & is_patch[:, None]
    return np.einsum("bghqk,gqk->h", weights, apart) / is_patch.sum()


def receptive_field(config: BiTConfig | ResNetConfig) -> np.ndarray:
    """Compute how many pixels the units of a ResNet can see: the side of their receptive field.

    It grows linearly with every 3 x 3 convolution between two strides, by 2 cells of the map (arXiv 2010.11929 compares
    attention distance with it). What a unit really uses is less.

    Args:
        config: a `BiTConfig`, or a `ResNetConfig` (the stem of a hybrid).

    Returns:
        Integer array, one per unit, first unit first, in pixels.

    Raises:
        TypeError: if `config` is neither, such as that of an axial ResNet, whose attention sees whole rows and columns.
    """
    if not isinstance(config, (BiTConfig, ResNetConfig)):
        raise TypeError(f"config must be a BiTConfig or a ResNetConfig; got {type(config).__name__}")
    side, step = 7, 2  # 7 x 7 convolution, stride 2
    side, step = side + 2 * step, 2 * step  # 3 x 3 pooling, stride 2
    sides = []
    for stage, units in enumerate(config.stage_sizes):
        for unit in range(units):
            side += 2 * step  # its 3 x 3 convolution
            step *= 2 if stage and not unit else 1  # which has the stride
            sides.append(side)
    return np.array(sides, int)
