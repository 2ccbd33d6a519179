"""The paper's figures, drawn from the arrays of `keras_vit.analysis`. Only this module uses matplotlib.

Each function returns a `matplotlib.figure.Figure` that is not registered with pyplot: display it as the last line of a
notebook cell, or write it with `figure.savefig(path)`. Images and maps are drawn without interpolation; curves can be
distinguished without colour. If the font lacks characters of a class name, a warning says how to choose another font.
"""

import io
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.heads import head_strength, receptive_field
from keras_vit.analysis.overlay import heat_map, overlay
from keras_vit.config import ResNetConfig
from keras_vit.tasks.drawing import as_uint8
from keras_vit.versions import import_optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "attention_distance",
    "attention_overlay",
    "embedding_filters",
    "explanation",
    "few_shot_curves",
    "nearest_images",
    "position_similarity",
    "reconstruction",
    "scaling_curves",
]

_DPI = 100
_TEXT_SIZE = 8  # points
_GAP, _LINE = 8, 20  # pixels around a tile, and for a line of text
_SIDE, _FILTER_SIDE, _RECONSTRUCTION_SIDE, _SIMILARITY_SIDE = 224, 56, 128, 420  # pixels, approximately
_MARGINS = (60, 36, 110, 54)  # pixels to the left of a position similarity, above, to the right and below
_TICKS = 7  # approximate number along an axis of patches
_BAR = 0.35  # height of a bar, as a share of the distance between two classes
_STEPS = 5  # minimum number of rows, so that a few bars are not stretched
# Marker and line of each curve, distinguishable without colour.
_STYLES = tuple(zip("osD^vPX*", ("-", "--", "-.", ":") * 2, strict=True))
_FONT = " (set matplotlib.rcParams['font.family'], or font.family in a file matplotlibrc, to a font that has it)"
_REFERENCES = {"ResNet-50": ResNetConfig(stage_sizes=(3, 4, 6, 3))}


def attention_overlay(images: np.ndarray, maps: np.ndarray, *, smooth: bool = True) -> "Figure":
    """Draw images next to their attention (Figs. 6 and 14 of arXiv 2010.11929).

    Args:
        images: (images, height, width, 1 or 3), uint8 or floats in [0, 1], resized and cropped as for the model.
        maps: (images, rows, columns), such as from `attention_rollout`.
        smooth: as in `overlay`.

    Returns:
        A Figure with a row per image: the image, its `overlay` and its `heat_map`.

    Raises:
        ValueError: if the numbers of images and maps differ or are 0, and as in `overlay`.
    """
    if len(images) != len(maps) or not len(maps):
        raise ValueError(f"images and maps must have the same number, at least 1; got {len(images)} and {len(maps)}")
    rows = [
        [as_uint8("images", p), overlay(p, m, smooth=smooth), heat_map(p, m, smooth=smooth)]
        for p, m in zip(images, maps, strict=True)
    ]
    return _tiles(rows, titles=("image", "attention", "as a heat map"))


def embedding_filters(filters: np.ndarray, columns: int = 7) -> "Figure":
    """Draw embedding filters (Fig. 7 left).

    Each filter is scaled by its largest absolute value; 0 is grey.

    Args:
        filters: (filters, height, width, 1 or 3), such as from `analysis.embedding_filters`.
        columns: filters per row.

    Returns:
        A Figure.

    Raises:
        ValueError: if `columns` is not an integer above 0.
    """
    checks.check_integer("columns", columns)
    filters = np.asarray(filters, "float64")
    largest = np.abs(filters).max((1, 2, 3), keepdims=True)
    tiles = [as_uint8("filters", tile) for tile in 0.5 + 0.5 * filters / np.where(largest > 0, largest, 1)]
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    return _tiles([tiles[i : i + columns] for i in range(0, len(tiles), columns)], side=_FILTER_SIDE)


def reconstruction(images: np.ndarray, corrupted: np.ndarray, reconstructed: np.ndarray) -> "Figure":
    """Draw images, their corrupted versions and the predicted patches.

    They come from `reconstruct` of a `MaskedPatchPrediction` or a `MaskedAutoencoder`.

    Args:
        images, corrupted, reconstructed: (images, height, width, 1 or 3), uint8 or floats in [0, 1].

    Returns:
        A Figure with a row per image.

    Raises:
        ValueError: on another shape or range.
    """
    named = {"images": images, "corrupted": corrupted, "reconstructed": reconstructed}
    columns = [[as_uint8(name, tile) for tile in tiles] for name, tiles in named.items()]
    return _tiles(zip(*columns, strict=True), titles=("image", "corrupted", "predicted"), side=_RECONSTRUCTION_SIDE)


def nearest_images(queries: np.ndarray, images: np.ndarray) -> "Figure":
    """Draw images next to their nearest neighbours.

    Args:
        queries: (queries, height, width, 1 or 3), uint8 or floats in [0, 1].
        images: (queries, count, height, width, 1 or 3), the neighbours, nearest first: the images at the indices of
            `keras_vit.evaluation.nearest`.

    Returns:
        A Figure with a row per query.

    Raises:
        ValueError: if the numbers of queries differ or are 0, or on another shape or range.
    """
    if len(queries) != len(images) or not len(queries):
        raise ValueError(f"queries and images must have the same number, at least 1; got {len(queries)}, {len(images)}")
    pairs = zip(queries, images, strict=True)
    rows = [[as_uint8("queries", query), *(as_uint8("images", image) for image in found)] for query, found in pairs]
    return _tiles(rows, titles=("query", *map(str, range(1, len(rows[0])))), side=_RECONSTRUCTION_SIDE)


def explanation(
    image: np.ndarray,
    answers: Sequence[tuple[str, float]],
    attention: np.ndarray,
    heads: np.ndarray,
    *,
    title: str = "",
    num_heads: int = 4,
) -> "Figure":
    """Draw a sheet that explains one prediction.

    It shows the classes, the attention and the strongest heads.

    Attention is drawn by `overlay` and by `heat_map`, the heads as heat maps, which are also readable on dark images.

    Args:
        image: (height, width, 1 or 3), uint8 or floats in [0, 1], resized and cropped as for the model.
        answers: sequence of (label, score in [0, 1]), best first.
        attention: (rows, columns), such as the map of `attention_rollout`.
        heads: (heads, rows, columns), the maps of one image from `head_maps`, in any order.
        title: first line of the sheet.
        num_heads: maximum number of heads to draw; those with the highest `head_strength` are drawn, highest first.

    Returns:
        A Figure.

    Raises:
        ValueError: if `num_heads` is not an integer above 0, and as in `overlay`.
    """
    checks.check_integer("num_heads", num_heads)
    image = _magnified(as_uint8("image", image), _SIDE)
    height, width = image.shape[:2]
    strength = head_strength(heads)
    strongest = np.argsort(-strength, kind="stable")[:num_heads]
    lefts = [_GAP + column * (width + _GAP) for column in range(max(4, len(strongest)))]
    tops = [_GAP + _LINE, _GAP + _LINE + height + _LINE + _GAP]
    figure, axes = _new_sheet(lefts[-1] + width + _GAP, tops[1] + _LINE + height + _GAP)
    _write(axes, title, _GAP, _GAP, weight="bold")
    upper = {"model input": image, "attention": overlay(image, attention), "as a heat map": heat_map(image, attention)}
    lower = {f"head {n + 1}, focus {100 * strength[n]:.0f} %": heat_map(image, heads[n]) for n in strongest}
    for top, tiles in zip(tops, (upper, lower), strict=True):
        for left, (caption, pixels) in zip(lefts, tiles.items(), strict=False):
            _write(axes, caption, left, top)
            _show(axes, pixels, left, top + _LINE)
    _write(axes, "predictions", lefts[3], tops[0])
    step = height / (max(len(answers), _STEPS) + 0.25)
    for place, (label, score) in enumerate(answers):  # a bar from 0 to 1, below its label
        middle = tops[0] + _LINE + step * (place + 0.75)
        for share, color in ((1, "0.9"), (score, "0.35")):
            axes.barh(middle, share * (lefts[-1] + width - lefts[3]), _BAR * step, lefts[3], color=color)
        label = label if len(label) <= 38 else f"{label[:37]}…"
        _write(axes, f"{100 * score:.1f} %  {label}", lefts[3], middle - 0.3 * step, va="bottom")
    return figure


def position_similarity(similarity: npt.ArrayLike) -> "Figure":
    """Draw the similarity of position embeddings (Figs. 7 centre and 10).

    There is one tile per patch.

    Args:
        similarity: (rows, columns, rows, columns) in [-1, 1], as returned by `analysis.position_similarity`.

    Returns:
        A Figure.
    """
    similarity = np.asarray(similarity, "float64")
    rows, columns = similarity.shape[:2]
    apart = np.pad(similarity, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)  # a gap between tiles
    tiles = apart.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]
    factor = max(1, _SIMILARITY_SIDE // max(tiles.shape))
    tiles = tiles.repeat(factor, axis=0).repeat(factor, axis=1)
    left, top, right, below = _MARGINS
    width, height = left + tiles.shape[1] + right, top + tiles.shape[0] + below
    figure = import_figure()(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    bottom, high = below / height, tiles.shape[0] / height
    axes = figure.add_axes((left / width, bottom, tiles.shape[1] / width, high))
    image = axes.imshow(tiles, vmin=-1, vmax=1, cmap="viridis", interpolation="none", aspect="auto")
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        shown = np.arange(0, count, max(1, round(count / _TICKS)))
        axis.set_ticks(factor * (shown * (count + 1) + count / 2) - 0.5, shown + 1)
    axes.set(xlabel="column of the patch", ylabel="row of the patch", title="similarity of position embeddings")
    scale = figure.add_axes(((left + tiles.shape[1] + 20) / width, bottom, 14 / width, high))
    figure.colorbar(image, cax=scale, label="cosine similarity")
    return figure


def attention_distance(distances: npt.ArrayLike, reference: str | npt.ArrayLike | None = "ResNet-50") -> "Figure":
    """Draw the attention distance of every head over the depth of its block.

    See Figs. 7 right and 11.

    Args:
        distances: (blocks, heads) in pixels, as returned by `mean_attention_distance`; NaN is left out.
        reference: a CNN to compare with: `"ResNet-50"`, the `receptive_field` of another, or None. Its line is half the
            receptive field, the reach of a unit from its own position, at the same relative depth.

    Returns:
        A Figure.

    Raises:
        ValueError: if `reference` is the name of another CNN.
    """
    distances = np.asarray(distances, "float64")
    blocks = np.arange(1, len(distances) + 1)
    figure, axes = _new_axes()
    ink = axes.xaxis.label.get_color()  # white in a dark style
    depths = np.broadcast_to(blocks[:, None], distances.shape)
    axes.plot(depths.ravel(), distances.ravel(), "o", color="0.55", markersize=4, label="a head")
    axes.plot(blocks, np.nanmean(distances, axis=1), "-", color=ink, label="mean of the heads")
    if reference is not None:
        name, sides = "CNN", np.asarray(reference)
        if isinstance(reference, str):
            name = checks.check_choice("reference", reference, _REFERENCES)
            sides = receptive_field(_REFERENCES[name])
        label = f"{name}: half the receptive field"
        axes.plot(np.linspace(1, len(blocks), len(sides)), sides / 2, "--", color=ink, label=label)
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
        xlabel, ylabel: labels of the axes; a cost may be any number above 0, such as a number of images.
        baseline: (cost, accuracy) of the common starting model of all curves, or None.

    Returns:
        A Figure.
    """
    figure, axes = _new_axes()
    for (name, points), (marker, line) in zip(curves.items(), itertools.cycle(_STYLES), strict=False):
        costs, accuracies = np.transpose(sorted(points))
        axes.plot(costs, 100 * accuracies, marker=marker, linestyle=line, label=name)
    if baseline is not None:
        ink = axes.xaxis.label.get_color()
        axes.plot(baseline[0], 100 * baseline[1], "*", color=ink, markersize=14, label="base", zorder=3)
    axes.set(xscale="log", xlabel=xlabel, ylabel=ylabel)
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    least, most = axes.xaxis.get_data_interval()
    # labels such as 500, 2k and 10M, at 1, 2 and 5 times powers of ten, or only at powers of ten for many decades
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 300 * least else (1,)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3)
    _add_legend(axes, axes.get_lines())
    return figure


def few_shot_curves(results: Mapping[str, Any]) -> "Figure":
    """Draw accuracy over shots per class.

    A curve is the mean over the seeds; its bars go from min to max.

    Args:
        results: {name: result of `evaluation.few_shot`, or {shots: accuracies in [0, 1], one per seed}}.

    Returns:
        A Figure.
    """
    figure, axes = _new_axes()
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
    _add_legend(axes, axes.containers)
    return figure


def import_figure():
    """Return a subclass of matplotlib's `Figure` that notebooks show without pyplot.

    Raises:
        ImportError: if matplotlib is not installed; the message has the command that installs it.
    """
    matplotlib_figure = import_optional("matplotlib.figure", "plots need matplotlib: pip install matplotlib")

    class NotebookFigure(matplotlib_figure.Figure):
        def _repr_png_(self):
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

        def savefig(self, *args, **kwargs):
            with warnings.catch_warnings(record=True) as caught:
                super().savefig(*args, **kwargs)
            for warning in caught:
                hint = _FONT if "missing from font" in str(warning.message) else ""
                warnings.warn(f"{warning.message}{hint}", warning.category, stacklevel=2)

    return NotebookFigure


def _new_axes():
    figure = import_figure()(figsize=(5.6, 4.0), dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


def _add_legend(axes, curves):
    """Add a legend with names as they are: matplotlib leaves out those that begin with _, and $ starts mathematics."""
    legend = axes.legend(curves, ["name"] * len(curves), fontsize="small")
    for text, curve in zip(legend.get_texts(), curves, strict=True):
        text.set(text=curve.get_label(), parse_math=False)


def _new_sheet(width, height):
    """Return (figure, axes); the coordinates of the axes are pixels from the upper left corner of the figure."""
    figure = import_figure()(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


def _show(axes, pixels, left, top):
    """Draw uint8 (height, width, 3) on a sheet, pixel by pixel."""
    extent = (left, left + pixels.shape[1], top + pixels.shape[0], top)
    axes.imshow(pixels, extent=extent, interpolation="none", aspect="auto")


def _write(axes, text, left, top, **style):
    """Write a line of text on a sheet, with its upper edge at `top`."""
    axes.text(left, top, text, **{"va": "top", "fontsize": _TEXT_SIZE, "parse_math": False, **style})


def _tiles(rows, titles=(), side=_SIDE):
    """Draw images, an iterable of rows of uint8 (height, width, 3) of one size, below the titles of their columns."""
    tiles = [[_magnified(tile, side) for tile in row] for row in rows]
    height, width = tiles[0][0].shape[:2]
    top = _GAP + (_LINE if titles else 0)
    figure, axes = _new_sheet(_GAP + len(tiles[0]) * (width + _GAP), top + len(tiles) * (height + _GAP))
    for column, title in enumerate(titles):
        _write(axes, title, _GAP + column * (width + _GAP), _GAP)
    for row, column in np.ndindex(len(tiles), len(tiles[0])):
        _show(axes, tiles[row][column], _GAP + column * (width + _GAP), top + row * (height + _GAP))
    return figure


def _magnified(pixels, side):
    """Repeat every pixel by a whole factor, such that the shorter side is about `side`."""
    factor = max(1, round(side / min(pixels.shape[:2])))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
