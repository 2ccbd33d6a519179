"""Embeddings of a model (Fig. 7 of arXiv 2010.11929): components of its filters, similarity of its positions."""

import math
import typing

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.attention import patch_grid
from keras_vit.layers import AddPositionEmbs, PatchEncoder, StdConv2D
from keras_vit.models.encoders import called_layers
from keras_vit.typing import Size


class FilterComponents(typing.NamedTuple):
    """Hold the result of `filter_components`.

    Attributes:
        filters: float64 (components, height, width, channels), each of norm 1.
        explained: float64 (components,), share of the filters' variance, in [0, 1].
    """

    filters: np.ndarray
    explained: np.ndarray


def embedding_filters(model: keras.Model | np.ndarray, components: int = 28, *, centred: bool = True) -> np.ndarray:
    """Compute the principal components of the first filters of a model.

    The filters are the columns of E in Eq. 1, one per channel of the tokens. In a hybrid, whose patches come from a
    feature map, they are the standardised filters of the ResNet's root. The paper shows 28 components of a ViT-L/32.

    Args:
        model: a model of this package or one that contains its layers; or a kernel (height, width, channels, filters).
        components: number of components, strongest first; fewer if there are fewer filters (one less, if centred) or
            pixels.
        centred: whether to subtract the mean filter first; the paper does not state this.

    Returns:
        float64 array (components, height, width, channels): directions of norm 1. The sign of a direction is arbitrary;
        it is chosen so that its largest absolute value is positive.

    Raises:
        ValueError: if the model has no layer with image filters, or the kernel has another rank.
    """
    return filter_components(model, components, centred=centred).filters


def filter_components(
    model: keras.Model | np.ndarray, components: int = 28, *, centred: bool = True
) -> FilterComponents:
    """Compute `embedding_filters` and the variance that each component explains.

    Args:
        model, components, centred: as in `embedding_filters`.

    Returns:
        A `FilterComponents`.

    Raises:
        ValueError: as in `embedding_filters`.
    """
    kernel = _first_kernel(model) if isinstance(model, keras.Model) else np.asarray(model)
    if kernel.ndim != 4:
        raise ValueError(f"a kernel must have shape (height, width, channels, filters); got {kernel.shape}")
    checks.check_integer("components", components)
    checks.check_flag("centred", centred)
    rows = kernel.astype("float64").reshape(-1, kernel.shape[-1]).T  # (filters, pixels and channels)
    rows = rows - rows.mean(0) if centred else rows
    _, singular, directions = np.linalg.svd(rows, full_matrices=False)
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], axis=1)
    directions = directions * np.sign(largest)
    explained = singular**2 / (singular**2).sum()
    count = min(components, len(rows) - int(centred))  # centring removes one dimension
    return FilterComponents(directions[:count].reshape(-1, *kernel.shape[:3]), explained[:count])


def smoothness(filters: npt.ArrayLike, cycles: float | None = None) -> np.ndarray:
    """Compute the share of each filter's power at low spatial frequencies.

    Args:
        filters: (filters, height, width, channels).
        cycles: highest frequency that counts as low, in cycles per filter along each axis; None for a quarter of the
            side, which is half of the highest possible frequency.

    Returns:
        float64 array (filters,) in [0, 1], 0 for a filter of zeros. For noise it is ((2 * cycles + 1) / side)^2 on
        average: 0.32 for filters of 16 x 16.
    """
    power = (np.abs(np.fft.fft2(np.asarray(filters, "float64"), axes=(1, 2))) ** 2).sum(-1)
    is_low = [np.abs(np.fft.fftfreq(s, 1 / s)) <= (s / 4 if cycles is None else cycles) for s in power.shape[1:]]
    low, total = (power * is_low[0][:, None] * is_low[1]).sum((1, 2)), power.sum((1, 2))
    return np.divide(low, total, out=np.zeros_like(low), where=total > 0)


def _first_kernel(model):
    """Return the effective kernel of the first layer with image filters."""
    kinds = (PatchEncoder, StdConv2D, keras.layers.Conv2D)
    layer = next((layer for layer in called_layers(model) if isinstance(layer, kinds)), None)
    if layer is None:
        raise ValueError(f"model must have a PatchEncoder or a convolution; {model.name} has none")
    if isinstance(layer, PatchEncoder):
        layer = layer.projection
    return keras.ops.convert_to_numpy(layer.standardised_kernel() if isinstance(layer, StdConv2D) else layer.kernel)


def position_similarity(
    model: keras.Model | npt.ArrayLike,
    layer: str | None = None,
    *,
    grid_size: Size | None = None,
    num_prefix_tokens: int | None = None,
) -> np.ndarray:
    """Compute the cosine similarity of the position embeddings of patches.

    All pairs of patches are compared.

    Args:
        model: a model of this package that adds position embeddings to its tokens (`learned`, `learned_2d`,
            `factorized`, `sincos2d` or `sincos2d_mae`), or one that contains its layers; or a table ([1,] prefix + rows
            * columns, dim).
        layer: for a model, the name of its position embedding layer, such as `"position_embs_01"`; None for the first.
        grid_size: for a table: (rows, columns); None for a square grid.
        num_prefix_tokens: for a table: number of rows before the patches; None for 1, a class token.

    Returns:
        float64 array (rows, columns, rows, columns) in [-1, 1]: [i, j] is the map of similarities with the patch in
        row i and column j. The similarity with a row of zeros is 0.

    Raises:
        ValueError: if the model adds no position embeddings (`none`, `relative` and Swins, which have no vector per
            patch), or if the table has another grid.
    """
    if isinstance(model, keras.Model):
        if grid_size is not None or num_prefix_tokens is not None:
            raise ValueError("a model must not be given grid_size or num_prefix_tokens")
        found = _position_layer(model, layer)
        grid, prefix = found.built_grid, -math.prod(found.built_grid)
        table = keras.ops.convert_to_numpy(found.table())[0].astype("float64")
    else:
        if layer is not None:
            raise ValueError(f"layer is for a model; got layer={layer!r} with a table")
        prefix = 1 if num_prefix_tokens is None else checks.check_integer("num_prefix_tokens", num_prefix_tokens, 0)
        table = np.asarray(model, "float64")
        table = table[0] if table.ndim == 3 and len(table) == 1 else table
        if table.ndim != 2:
            raise ValueError(f"a table must have shape (prefix + rows * columns, dim); got {table.shape}")
        grid = patch_grid(len(table) - prefix, grid_size)
    rows = table[prefix:]
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return np.clip(rows @ rows.T, -1, 1).reshape(*grid, *grid)


def _position_layer(model, name):
    found = (layer for layer in called_layers(model) if isinstance(layer, AddPositionEmbs))
    layers = {layer.name: layer for layer in found if layer.position_embedding != "none"}
    if not layers:
        raise ValueError(
            "model must add position embeddings to its tokens, position_embedding 'learned', 'learned_2d', "
            f"'factorized' or 'sincos2d'; {model.name} does not"
        )
    if name is None:
        return next(iter(layers.values()))
    return layers[checks.check_choice("layer", name, layers)]
