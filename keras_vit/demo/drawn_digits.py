"""The ten digits, drawn by strokes as a pen writes them; dedicated to the public domain (CC0 1.0)."""

import math

from PIL import Image

from keras_vit import checks
from keras_vit.demo.pen import Pen

_SIZE = 160  # side in pixels
_MARGIN = 24  # pixels around the box of a digit
_PAPER, _INK = (250, 248, 242), (30, 40, 90)


def list_digits():
    """Returns the names of the digits, `"0"` to `"9"`."""
    return list(_STROKES)


def draw_digit(name, width=14):
    """Draws a digit in dark ink on light paper, alike at every call.

    Args:
        name: one of `list_digits()`.
        width: of the strokes in pixels.

    Returns:
        `PIL.Image.Image`, RGB, 160 x 160 pixels.

    Raises:
        ValueError: if there is none of that name, or the width is no positive integer.
    """
    checks.check_choice("name", name, _STROKES)
    checks.check_integer("width", width)
    pen = Pen(Image.new("RGB", (_SIZE, _SIZE), _PAPER))
    inside = _SIZE - 2 * _MARGIN
    for stroke in _STROKES[name]:
        pen.line([(_MARGIN + inside * x, _MARGIN + inside * y) for x, y in stroke], _INK, width, is_round=True)
    return pen.image()


def _arc(x, y, across, down, start, end):
    """Points of an ellipse around (x, y), from one angle to another in degrees, clockwise from the right."""
    angles = [math.radians(start + (end - start) * k / 24) for k in range(25)]
    return [(x + across * math.cos(a), y + down * math.sin(a)) for a in angles]


# digit: its strokes, each a list of points in a box from (0, 0), the upper left, to (1, 1)
_STROKES = {
    "0": [_arc(0.5, 0.5, 0.32, 0.5, -90, 270)],
    "1": [[(0.3, 0.25), (0.55, 0.0), (0.55, 1.0)]],
    "2": [[*_arc(0.5, 0.28, 0.3, 0.28, -170, 30), (0.2, 1.0), (0.85, 0.98)]],
    "3": [[*_arc(0.45, 0.25, 0.3, 0.25, -160, 80), *_arc(0.45, 0.73, 0.35, 0.27, -80, 160)]],
    "4": [[(0.5, 0.0), (0.12, 0.62), (0.88, 0.62)], [(0.65, 0.3), (0.62, 1.0)]],
    "5": [[(0.8, 0.0), (0.28, 0.0), (0.24, 0.45), *_arc(0.48, 0.68, 0.33, 0.32, -120, 150)]],
    "6": [[*_arc(0.75, 0.6, 0.55, 0.6, -90, -180), *_arc(0.5, 0.7, 0.3, 0.3, 180, 540)]],
    "7": [[(0.15, 0.0), (0.85, 0.0), (0.42, 1.0)], [(0.35, 0.52), (0.78, 0.5)]],
    "8": [[*_arc(0.5, 0.25, 0.26, 0.25, 90, 450)], [*_arc(0.5, 0.75, 0.32, 0.25, -90, 270)]],
    "9": [[*_arc(0.48, 0.28, 0.28, 0.28, 0, -360), (0.74, 0.5), (0.62, 1.0)]],
}
