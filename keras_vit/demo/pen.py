"""Pen: draws shapes on an image several times larger than wanted, so that their edges are smooth."""

from PIL import Image, ImageDraw, ImageFont

_FINE = 2  # drawn so many times larger, then averaged


class Pen:
    """Draws in pixels of the image that comes out.

    Args:
        background: `PIL.Image.Image` of the size that is wanted; it is copied.
    """

    def __init__(self, background):
        self._size = background.size
        self._image = background.resize([_FINE * side for side in background.size], Image.Resampling.NEAREST)
        self._draw = ImageDraw.Draw(self._image)

    def image(self):
        """Returns what is drawn, at the size that is wanted."""
        return self._image.resize(self._size, Image.Resampling.BOX)

    def box(self, corners, colour, radius=0):
        """Fills (left, top, right, bottom), with round corners of `radius`."""
        self._draw.rounded_rectangle([_FINE * x for x in corners], radius=_FINE * radius, fill=colour)

    def ellipse(self, centre, radii, colour):
        """Fills an ellipse."""
        self._draw.ellipse(_around(centre, radii), fill=colour)

    def pie(self, centre, radii, degrees, colour):
        """Fills the part of an ellipse from one angle to another, clockwise from the right."""
        self._draw.pieslice(_around(centre, radii), *degrees, fill=colour)

    def arc(self, centre, radii, degrees, colour, width):
        """Draws the edge of a `pie`."""
        self._draw.arc(_around(centre, radii), *degrees, fill=colour, width=round(_FINE * width))

    def polygon(self, points, colour):
        """Fills a polygon."""
        self._draw.polygon([(_FINE * x, _FINE * y) for x, y in points], fill=colour)

    def line(self, points, colour, width, is_round=False):
        """Draws a line through points; `is_round` rounds its ends."""
        width = round(_FINE * width)
        self._draw.line([(_FINE * x, _FINE * y) for x, y in points], fill=colour, width=width, joint="curve")
        for x, y in (points[0], points[-1]) if is_round else ():
            self.ellipse((x, y), (width / _FINE / 2, width / _FINE / 2), colour)

    def text(self, centre, text, size, colour):
        """Writes a word around a point, `size` pixels high."""
        font = ImageFont.load_default(_FINE * size)
        self._draw.text([_FINE * x for x in centre], text, font=font, fill=colour, anchor="mm")

    def sphere(self, centre, radius, colour, shine):
        """Draws a ball that is lit from the upper left.

        Args:
            shine: from 0 to 1, how white the brightest spot is.
        """
        for smaller in range(radius):
            part = smaller / radius
            shade, white = 0.55 + 0.45 * part**0.7, shine * max(0, part - 0.55)
            lit = tuple(min(255, round(level * shade + (255 - level) * white)) for level in colour)
            left, up = 0.3 * smaller, 0.35 * smaller
            self.ellipse((centre[0] - left, centre[1] - up), (radius - smaller, radius - smaller), lit)


def gradient(size, top, bottom):
    """Returns an image of `size` (width, height) whose colour changes evenly from top to bottom."""
    mask = Image.linear_gradient("L").resize(size)
    return Image.composite(Image.new("RGB", size, bottom), Image.new("RGB", size, top), mask)


def _around(centre, radii):
    (x, y), (across, down) = centre, radii
    return [_FINE * (x - across), _FINE * (y - down), _FINE * (x + across), _FINE * (y + down)]
