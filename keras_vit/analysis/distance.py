"""Mean attention distance in pixels (Figs. 7 and 11 of arXiv 2010.11929), and the receptive field of a ResNet."""

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
        TypeError, ValueError: as in `attention_rollout`; for weights without `patch_size`.
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
    """Return the distance per head, averaged over queries and summed over images."""
    weights = weights if block.is_grouped else weights[:, None]  # (images, groups, heads, queries, keys)
    is_patch = block.places >= 0
    rows, columns = np.divmod(block.places, block.grid_size[1])
    apart = np.hypot(
        cell[0] * (rows[:, :, None] - rows[:, None]), cell[1] * (columns[:, :, None] - columns[:, None])
    )  # (groups, queries, keys)
    apart *= is_patch[:, :, None] & is_patch[:, None]
    return np.einsum("bghqk,gqk->h", weights, apart) / is_patch.sum()


def receptive_field(config: BiTConfig | ResNetConfig) -> np.ndarray:
    """Compute the receptive field of each unit of a ResNet: the side in pixels.

    Each 3 x 3 convolution between two strides adds 2 cells of the map (arXiv 2010.11929 compares attention distance
    with it). The effective receptive field is smaller.

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
