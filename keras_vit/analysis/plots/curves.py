"""Figures with axes: attention distance, position similarity, scaling and few-shot curves."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.distance import receptive_field
from keras_vit.analysis.plots.canvas import Sheet, label_decades, magnify, new_axes
from keras_vit.config import ResNetConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Marker and line of each curve, distinguishable without colour.
_STYLES = tuple(zip("osD^vPX*", ("-", "--", "-.", ":") * 2, strict=True))
_REFERENCES = {"ResNet-50": ResNetConfig(stage_sizes=(3, 4, 6, 3))}
_TICKS = 7  # approximate number along an axis of patches
_TILES_SIDE = 420  # pixels
_MARGINS = (60, 36, 110, 54)  # pixels to the left of the tiles, above, to the right and below


def position_similarity(similarity: npt.ArrayLike) -> "Figure":
    """Draw the similarity of position embeddings (Figs. 7 centre and 10).

    There is one tile per patch.

    Args:
        similarity: (rows, columns, rows, columns) in [-1, 1], as returned by `analysis.position_similarity`.

    Returns:
        A Figure.
    """
    similarity = np.asarray(similarity)
    rows, columns = similarity.shape[:2]
    tiles = np.full((rows * (rows + 1) - 1, columns * (columns + 1) - 1), np.nan)  # a gap between tiles
    for row, column in np.ndindex(rows, columns):
        top, left = row * (rows + 1), column * (columns + 1)
        tiles[top : top + rows, left : left + columns] = similarity[row, column]
    factor = max(1, _TILES_SIDE // max(tiles.shape))
    tiles = magnify(tiles, factor)
    height, width = tiles.shape
    left, top, bar, below = _MARGINS
    sheet = Sheet(left + width + bar, top + height + below)
    axes = sheet.axes(left, top, width, height)
    image = axes.imshow(tiles, vmin=-1, vmax=1, cmap="viridis", interpolation="none", aspect="auto")
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        shown = np.arange(0, count, max(1, round(count / _TICKS)))
        axis.set_ticks(factor * (shown * (count + 1) + count / 2) - 0.5, shown + 1)
    axes.set(xlabel="column of the patch", ylabel="row of the patch", title="similarity of position embeddings")
    scale = sheet.axes(left + width + 20, top, 14, height)
    sheet.figure.colorbar(image, cax=scale, label="cosine similarity")
    return sheet.figure


def attention_distance(distances: npt.ArrayLike, reference: str | npt.ArrayLike | None = "ResNet-50") -> "Figure":
    """Draw the attention distance of every head over the depth of its block.

    See Figs. 7 right and 11.

    Args:
        distances: (blocks, heads) in pixels, as returned by `mean_attention_distance`; NaN is left out.
        reference: a CNN to compare with: `"ResNet-50"`, the `receptive_field` of another, or None. Its line is half the
            receptive field, the reach of a unit from its own position, at the same relative depth.

    Returns:
        A Figure.
    """
    distances = np.asarray(distances, "float64")
    blocks = np.arange(1, len(distances) + 1)
    figure, axes = new_axes()
    depths = np.broadcast_to(blocks[:, None], distances.shape)
    axes.plot(depths.ravel(), distances.ravel(), "o", color="0.55", markersize=4, label="a head")
    axes.plot(blocks, np.nanmean(distances, axis=1), "-", color="black", label="mean of the heads")
    if reference is not None:
        name, sides = _reference(reference)
        label = f"{name}: half the receptive field"
        axes.plot(np.linspace(1, len(blocks), len(sides)), sides / 2, "--", color="black", label=label)
    axes.set(xlabel="block", ylabel="mean attention distance (pixels)", ylim=(0, 1.15 * np.nanmax(distances)))
    axes.legend(fontsize="small")
    return figure


def scaling_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str = "multiply-accumulates per image",
    ylabel: str = "accuracy (%)",
    baseline: tuple[float, float] | None = None,
) -> "Figure":
    """Draw accuracy over cost on a logarithmic axis (Figs. 3 to 5 and 8).

    There is one curve per name.

    Args:
        curves: {name: sequence of (cost, accuracy in [0, 1])}.
        xlabel, ylabel: of the axes; a cost may be any number above 0, such as a number of images.
        baseline: (cost, accuracy) of the common starting model of all curves, or None.

    Returns:
        A Figure.
    """
    figure, axes = new_axes()
    for (name, points), (marker, line) in zip(curves.items(), itertools.cycle(_STYLES), strict=False):
        costs, accuracies = np.transpose(sorted(points))
        axes.plot(costs, 100 * accuracies, marker=marker, linestyle=line, label=name)
    if baseline is not None:
        axes.plot(baseline[0], 100 * baseline[1], "*", color="black", markersize=14, label="base", zorder=3)
    axes.set(xscale="log", xlabel=xlabel, ylabel=ylabel)
    label_decades(axes.xaxis)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def few_shot_curves(results: Mapping[str, Any]) -> "Figure":
    """Draw accuracy over shots per class.

    A curve is the mean over the seeds; its bars go from min to max.

    Args:
        results: {name: result of `evaluation.few_shot`, or {shots: accuracies in [0, 1], one per seed}}.

    Returns:
        A Figure.
    """
    figure, axes = new_axes()
    ticks = set()
    for (name, result), (marker, line) in zip(results.items(), itertools.cycle(_STYLES), strict=False):
        accuracies = getattr(result, "accuracy", result)
        shots = sorted(accuracies)
        values = np.array([100 * np.asarray(accuracies[count], "float64") for count in shots])  # (shots, seeds)
        means = values.mean(1)
        bars = (means - values.min(1), values.max(1) - means)
        axes.errorbar(shots, means, bars, marker=marker, linestyle=line, capsize=3, label=name)
        ticks |= set(shots)
    axes.set(xscale="log", xlabel="shots (images per class)", ylabel="accuracy (%)")
    axes.set_xticks(sorted(ticks), sorted(ticks), minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _reference(reference):
    if isinstance(reference, str):
        checks.check_choice("reference", reference, _REFERENCES)
        return reference, receptive_field(_REFERENCES[reference])
    return "CNN", np.asarray(reference)
