"""Figures of images: attention, filters, reconstructions, and a sheet that explains a prediction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_vit import checks
from keras_vit.analysis.heads import head_strength
from keras_vit.analysis.heat_map import heat_map
from keras_vit.analysis.overlay import as_uint8, overlay
from keras_vit.analysis.plots.canvas import Sheet, draw_tiles, enlargement, magnify

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FILTER_SIDE, _RECONSTRUCTION_SIDE = 56, 128  # pixels
_GAP, _LINE = 10, 20  # of an explanation
_BAR = 0.35  # height of a bar, as a share of the distance between two answers
_STEPS = 5  # minimum number of rows, so that a few answers are not stretched


def attention_overlay(images: np.ndarray, maps: np.ndarray, *, smooth: bool = True) -> "Figure":
    """Draw images next to their attention (Figs. 6 and 14 of arXiv 2010.11929).

    Args:
        images: (images, height, width, 1 or 3), uint8 or floats in [0, 1], as the model sees them.
        maps: (images, rows, columns), such as from `attention_rollout`.
        smooth: as in `overlay`.

    Returns:
        A Figure with a row per image: the image, its `overlay` and its `heat_map`.

    Raises:
        ValueError: if the numbers of images and maps differ or are 0, and as in `overlay`.
    """
    if len(images) != len(maps) or not len(maps):
        raise ValueError(f"images and maps must be equally many; got {len(images)} and {len(maps)}")
    rows = [
        [as_uint8("images", p), overlay(p, m, smooth=smooth), heat_map(p, m, smooth=smooth)]
        for p, m in zip(images, maps, strict=True)
    ]
    return draw_tiles(rows, titles=("image", "attention", "as a heat map"))


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
    return draw_tiles([tiles[i : i + columns] for i in range(0, len(tiles), columns)], side=_FILTER_SIDE)


def reconstruction(images: np.ndarray, corrupted: np.ndarray, reconstructed: np.ndarray) -> "Figure":
    """Draw images, their corrupted versions and the predicted patches.

    They are those of a masked patch prediction.

    Args:
        images, corrupted, reconstructed: (images, height, width, 1 or 3), uint8 or floats in [0, 1].

    Returns:
        A Figure with a row per image.

    Raises:
        ValueError: on another shape or range.
    """
    named = {"images": images, "corrupted": corrupted, "reconstructed": reconstructed}
    columns = [[as_uint8(name, tile) for tile in tiles] for name, tiles in named.items()]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return draw_tiles(rows, titles=("image", "corrupted", "predicted"), side=_RECONSTRUCTION_SIDE)


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
        image: (height, width, 1 or 3), uint8 or floats in [0, 1], as the model sees it.
        answers: sequence of (label, score in [0, 1]), best first.
        attention: (rows, columns), such as the map of `attention_rollout`.
        heads: (heads, rows, columns), as returned by `head_maps`; the strongest by `head_strength` come first.
        title: first line of the sheet.
        num_heads: maximum number of heads to draw.

    Returns:
        A Figure.

    Raises:
        ValueError: if `num_heads` is not an integer above 0, and as in `overlay`.
    """
    checks.check_integer("num_heads", num_heads)
    image = as_uint8("image", image)
    image = magnify(image, enlargement(image))
    height, width = image.shape[:2]
    strength = head_strength(heads)
    strongest = np.argsort(-strength, kind="stable")[:num_heads]
    columns = max(4, len(strongest))
    lefts = [_GAP + column * (width + _GAP) for column in range(columns)]
    sheet = Sheet(lefts[-1] + width + _GAP, 3 * (_GAP + _LINE) + 2 * height)
    sheet.text(title, _GAP, _GAP, weight="bold")
    top = _GAP + _LINE
    tiles = {
        "as the model sees it": image,
        "what it attends to": overlay(image, attention),
        "as a heat map": heat_map(image, attention),
    }
    for left, (caption, pixels) in zip(lefts, tiles.items(), strict=False):
        _captioned(sheet, caption, pixels, left, top)
    sheet.text("what it answers", lefts[3], top)
    _answers(sheet.axes(lefts[3], top + _LINE, lefts[-1] + width - lefts[3], height), answers)
    top += _LINE + height + _GAP
    for left, head in zip(lefts, strongest, strict=False):
        caption = f"head {head + 1}, {100 * strength[head]:.0f} % uneven"
        _captioned(sheet, caption, heat_map(image, heads[head]), left, top)
    return sheet.figure


def _captioned(sheet, caption, pixels, left, top):
    sheet.text(caption, left, top)
    sheet.image(pixels, left, top + _LINE)


def _answers(axes, answers):
    """Draw a bar from 0 to 1 per answer, below its label."""
    axes.set_axis_off()
    for place, (label, score) in enumerate(answers):
        axes.barh(place, 1, height=_BAR, color="0.9")
        axes.barh(place, score, height=_BAR, color="0.35")
        axes.text(0, place - 0.3, f"{100 * score:.1f} %  {_shortened(label)}", fontsize=8, va="bottom")
    axes.set(xlim=(0, 1), ylim=(max(len(answers), _STEPS) - 0.5, -0.75))


def _shortened(label, length=38):
    return label if len(label) <= length else label[: length - 1] + "…"
