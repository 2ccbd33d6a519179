"""Figures to draw on: axes of a standard size, and sheets that show images pixel by pixel."""

import functools
import io

import numpy as np

_DPI = 100
_GAP = 8  # pixels around a tile
_LINE = 20  # pixels for a line of text
_TEXT_SIZE = 8  # points


def new_axes(width=5.6, height=4.0):
    """Return (figure, axes) of this size in inches, with 100 pixels per inch."""
    figure = _new_figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


def label_decades(axis):
    """Label a logarithmic axis with numbers such as 500, 2k and 10M: at 1, 2 and 5, or only at 1 for many decades."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    least, most = axis.get_data_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if most < 300 * least else (1,)))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


class Sheet:
    """A figure with a layout in pixels, counted from its upper left corner.

    Args:
        width, height: in pixels.
    """

    def __init__(self, width, height):
        self.size = (width, height)
        self.figure = _new_figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)

    def image(self, pixels, left, top):
        """Show uint8 (height, width, 3); one pixel of the image is one pixel of the sheet."""
        axes = self.axes(left, top, pixels.shape[1], pixels.shape[0])
        axes.imshow(pixels, interpolation="none", aspect="auto")
        axes.set_axis_off()

    def text(self, text, left, top, **style):
        """Write a line of text with its upper edge at `top`."""
        width, height = self.size
        self.figure.text(left / width, 1 - top / height, text, va="top", fontsize=_TEXT_SIZE, **style)

    def axes(self, left, top, width, height):
        """Return axes that fill this rectangle; their labels are outside of it."""
        whole_width, whole_height = self.size
        return self.figure.add_axes(
            (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
        )


def draw_tiles(rows, titles=(), side=None):
    """Draw images in rows and columns.

    Args:
        rows: list of lists of uint8 (height, width, 3), all of the same size.
        titles: of the columns, from the left.
        side: approximate pixels of an image's shorter side, reached by a whole factor; None for 224.

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
    """Return the whole factor that enlarges an image's shorter side to about `side`, 224 by default."""
    return max(1, round((side or 224) / min(pixels.shape[:2])))


def magnify(pixels, factor):
    """Repeat every pixel `factor` times down and across."""
    return np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)


def import_figure():
    """Return matplotlib's `Figure`; raise an ImportError with the install command if it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib: pip install matplotlib") from None
    return Figure


def _new_figure(**options):
    return _notebook_figure(import_figure())(**options)


@functools.cache
def _notebook_figure(figure):
    """Return a subclass of `figure` that notebooks display; IPython handles others only after a pyplot import."""

    class NotebookFigure(figure):
        def _repr_png_(self):
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return NotebookFigure
