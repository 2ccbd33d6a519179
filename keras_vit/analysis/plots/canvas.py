"""Figures to draw on: axes of a usual size, and sheets on which images stand pixel by pixel."""

import functools
import io

import numpy as np

_DPI = 100
_GAP = 8  # pixels around a tile
_LINE = 20  # pixels for a line of text
_TEXT_SIZE = 8  # points


def new_axes(width=5.6, height=4.0):
    """Return (figure, axes) of so many inches, with 100 pixels each."""
    figure = _new_figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


def label_decades(axis):
    """Labels a logarithmic axis with numbers such as 500, 2k and 10M: 1, 2 and 5 of a decade, 1 alone of many."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    least, most = axis.get_data_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 300 * least else (1,)))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


class Sheet:
    """A figure that is laid out by the pixel, counted from its upper left corner.

    Args:
        width, height: in pixels.
    """

    def __init__(self, width, height):
        self.size = (width, height)
        self.figure = _new_figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)

    def image(self, pixels, left, top):
        """Show uint8 (height, width, 3) so that each of its pixels is one of the sheet."""
        axes = self.axes(left, top, pixels.shape[1], pixels.shape[0])
        axes.imshow(pixels, interpolation="none", aspect="auto")
        axes.set_axis_off()

    def text(self, text, left, top, **style):
        """Write a line whose upper edge is at `top`."""
        width, height = self.size
        self.figure.text(left / width, 1 - top / height, text, va="top", fontsize=_TEXT_SIZE, **style)

    def axes(self, left, top, width, height):
        """Return axes that fill this rectangle; their labels stand outside of it."""
        whole_width, whole_height = self.size
        return self.figure.add_axes(
            (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
        )


def draw_tiles(rows, titles=(), side=None):
    """Draw images in rows and columns.

    Args:
        rows: list of lists of uint8 (height, width, 3), all of one size.
        titles: of the columns, from the left.
        side: pixels that an image's shorter side is enlarged to, as near as a whole factor comes to it; None is 224.

    Returns:
        A Figure.
    """
    factor = enlargement(rows[0][0], side)
    tiles = [[magnify(tile, factor) for tile in row] for row in rows]
    height, width = tiles[0][0].shape[:2]
    top = _GAP + (_LINE if titles else 0)
    sheet = Sheet(_GAP + len(tiles[0]) * (width + _GAP), top + len(tiles) * (height + _GAP))
    for column, title in enumerate(titles):
        sheet.text(title, _GAP + column * (width + _GAP), _GAP)
    for row, column in np.ndindex(len(tiles), len(tiles[0])):
        sheet.image(tiles[row][column], _GAP + column * (width + _GAP), top + row * (height + _GAP))
    return sheet.figure


def enlargement(pixels, side=None):
    """The whole number by which to enlarge an image so that its shorter side comes near `side`, 224 by default."""
    return max(1, round((side or 224) / min(pixels.shape[:2])))


def magnify(pixels, factor):
    """Repeat every pixel `factor` times down and across."""
    return np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)


def import_figure():
    """Return matplotlib's `Figure`; raises ImportError, with what to install, where it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib: pip install matplotlib") from None
    return Figure


def _new_figure(**options):
    return _notebook_figure(import_figure())(**options)


@functools.cache
def _notebook_figure(figure):
    """Subclass of `figure` that a notebook shows: IPython draws others once pyplot was imported."""

    class NotebookFigure(figure):
        def _repr_png_(self):
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return NotebookFigure
