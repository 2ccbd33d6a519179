"""Draw the example images: one clear object each, of ImageNet's classes; public domain (CC0 1.0)."""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_WIDTH, _HEIGHT = 480, 360  # pixels of a scene
_FINE = 2  # scenes are drawn this many times larger and then averaged, which smooths the edges


def draw_scene(name):
    """Draw the scene of that name in `SCENES`: uint8 (360, 480, 3), identical at every call."""
    draw, top, bottom = SCENES[name]
    pen = _Pen(top, bottom)
    draw(pen)
    return np.asarray(pen.image.resize((_WIDTH, _HEIGHT), Image.Resampling.BOX))


class _Pen:
    """Draws on a background whose colour changes from `top` to `bottom`; all lengths are pixels of the scene."""

    def __init__(self, top, bottom):
        size = (_WIDTH, _HEIGHT)
        mask = Image.linear_gradient("L").resize(size)
        background = Image.composite(Image.new("RGB", size, bottom), Image.new("RGB", size, top), mask)
        self.image = background.resize((_FINE * _WIDTH, _FINE * _HEIGHT), Image.Resampling.NEAREST)
        self._draw = ImageDraw.Draw(self.image)

    def box(self, corners, colour, radius=0):
        self._draw.rounded_rectangle([_FINE * x for x in corners], radius=_FINE * radius, fill=colour)

    def ellipse(self, centre, radii, colour):
        self._draw.ellipse(_around(centre, radii), fill=colour)

    def pie(self, centre, radii, degrees, colour):
        self._draw.pieslice(_around(centre, radii), *degrees, fill=colour)

    def arc(self, centre, radii, degrees, colour, width):
        self._draw.arc(_around(centre, radii), *degrees, fill=colour, width=_FINE * width)

    def polygon(self, points, colour):
        self._draw.polygon([(_FINE * x, _FINE * y) for x, y in points], fill=colour)

    def line(self, points, colour, width):
        self._draw.line([(_FINE * x, _FINE * y) for x, y in points], fill=colour, width=_FINE * width, joint="curve")

    def text(self, centre, text, size, colour):
        font = ImageFont.load_default(_FINE * size)
        self._draw.text([_FINE * x for x in centre], text, font=font, fill=colour, anchor="mm")


def _around(centre, radii):
    """The corners of the box around an ellipse."""
    (x, y), (across, down) = centre, radii
    return [_FINE * (x - across), _FINE * (y - down), _FINE * (x + across), _FINE * (y + down)]


def _polar(centre, radius, degrees):
    angle = math.radians(degrees)
    return centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle)


def _regular(corners, centre, radius, first):
    """A regular polygon whose first corner is at `first` degrees."""
    return [_polar(centre, radius, first + 360 * k / corners) for k in range(corners)]


def _balloon(pen):
    red, yellow, blue = (220, 50, 40), (250, 200, 50), (40, 90, 190)
    pen.box((0, 320, 480, 360), (90, 140, 70))
    # stripe by stripe: half its width at the middle, at the shoulder and at the mouth
    for colour, middle, shoulder, mouth in ((red, 95, 78, 18), (yellow, 72, 55, 13), (blue, 48, 34, 9)):
        pen.ellipse((330, 130), (middle, 100), colour)
        pen.polygon([(330 - shoulder, 188), (330 + shoulder, 188), (330 + mouth, 260), (330 - mouth, 260)], colour)
    pen.ellipse((330, 130), (24, 100), yellow)
    for x in (316, 344):
        pen.line([(x, 260), (x, 280)], (60, 50, 40), 2)
    pen.box((314, 280, 346, 304), (130, 85, 45), radius=3)


def _soccer_ball(pen):
    middle, radius = (150, 210), 90
    black, seam = (25, 25, 28), (90, 90, 95)
    pen.ellipse((160, 296), (radius, 18), (45, 90, 40))
    for smaller in range(radius):  # lit from the upper left
        part = smaller / radius
        shade, white = 0.55 + 0.45 * part**0.7, 0.3 * max(0, part - 0.55)
        lit = min(255, round(245 * shade + 10 * white))
        pen.ellipse((150 - 0.3 * smaller, 210 - 0.35 * smaller), (radius - smaller, radius - smaller), (lit, lit, lit))
    pen.polygon(_regular(5, middle, 30, -90), black)
    for k in range(5):
        angle = 72 * k - 90
        pen.line([_polar(middle, 30, angle), _polar(middle, 56, angle)], seam, 2)
        joint = _polar(middle, 62, angle + 36)
        pen.line([_polar(middle, 56, angle), joint, _polar(middle, 56, angle + 72)], seam, 2)
        pen.line([joint, _polar(middle, 86, angle + 36)], seam, 2)
        # seen from the side, so flattened along the radius
        centre = _polar(middle, 72, angle)
        pentagon = _regular(5, (0, 0), 1, 0)
        pen.polygon([_polar(_polar(centre, 14 * x, angle), 26 * y, angle + 90) for x, y in pentagon], black)


def _mushroom(pen):
    red, white = (205, 35, 25), (250, 245, 235)
    for k in range(120):  # grass
        foot = (4 * k, 300 + 37 * k % 61)
        pen.line([foot, (foot[0] + 23 * k % 17 - 8, foot[1] - 20 - 11 * k % 19)], (60 + 7 * k % 40, 125, 45), 2)
    pen.polygon([(130, 170), (170, 170), (180, 305), (120, 305)], (240, 230, 205))
    pen.ellipse((150, 305), (30, 12), (240, 230, 205))
    pen.ellipse((150, 178), (88, 22), (225, 205, 170))
    pen.pie((150, 176), (100, 100), (180, 360), red)
    pen.ellipse((150, 176), (100, 16), red)
    pen.ellipse((150, 184), (86, 12), (235, 220, 190))
    spots = ((95, 135, 11), (135, 105, 13), (185, 125, 12), (212, 158, 9), (130, 148, 10), (165, 158, 7), (72, 164, 7))
    for x, y, size in spots:
        pen.ellipse((x, y), (size, 0.8 * size), white)


def _umbrella(pen):
    wood, red, seam = (60, 45, 35), (200, 30, 45), (140, 15, 30)
    pen.line([(330, 62), (330, 80)], wood, 6)
    pen.pie((330, 190), (125, 115), (180, 360), red)
    for centre, half in ((235, 30), (297, 33), (363, 33), (425, 30)):
        pen.ellipse((centre, 190), (half, 14), (170, 182, 192))
    pen.arc((330, 190), (65, 115), (180, 360), seam, 3)
    pen.line([(330, 75), (330, 190)], seam, 3)
    pen.line([(330, 186), (330, 295)], wood, 6)
    pen.arc((318, 295), (14, 17), (0, 180), wood, 6)


def _wall_clock(pen):
    centre, ink = (330, 150), (30, 30, 30)
    pen.ellipse((335, 157), (100, 100), (190, 175, 155))
    pen.ellipse(centre, (100, 100), (40, 40, 45))
    pen.ellipse(centre, (90, 90), (250, 250, 248))
    for hour in range(12):
        pen.text(_polar(centre, 70, 30 * hour - 90), str(hour or 12), 24, ink)
    for minute in range(60):
        pen.line([_polar(centre, 87, 6 * minute), _polar(centre, 82, 6 * minute)], (60, 60, 60), 1)
    for length, angle, width, colour in ((45, 214, 6, ink), (68, -38, 4, ink), (75, 105, 2, (200, 30, 30))):
        pen.line([centre, _polar(centre, length, angle)], colour, width)
    pen.ellipse(centre, (5, 5), ink)


def _street_sign(pen):
    pen.box((145, 140, 155, 360), (130, 130, 130))
    pen.polygon(_regular(8, (150, 140), 88, 22.5), (250, 250, 250))
    pen.polygon(_regular(8, (150, 140), 82, 22.5), (190, 20, 30))
    pen.text((150, 140), "STOP", 58, (255, 255, 255))


def _jack_o_lantern(pen):
    light = (255, 230, 90)
    for x, half in ((-60, 50), (60, 50), (-32, 52), (32, 52), (0, 50)):
        pen.ellipse((330 + x, 200), (half, 88), (235 - abs(x), 120 - abs(x) // 2, 20))
    pen.box((321, 85, 339, 120), (80, 100, 40), radius=5)
    for side in (-1, 1):
        pen.polygon([(330 + 45 * side, 155), (330 + 20 * side, 190), (330 + 70 * side, 190)], light)
    pen.polygon([(330, 192), (317, 214), (343, 214)], light)
    upper = [(-75, 222), (-50, 234), (-40, 224), (-15, 240), (0, 230), (15, 240), (40, 224), (50, 234), (75, 222)]
    lower = [(45, 262), (20, 252), (0, 270), (-20, 252), (-45, 262)]
    pen.polygon([(330 + x, y) for x, y in (*upper, *lower)], light)


_SKY = (90, 150, 220), (200, 225, 245)

# name: the function that draws it, the colours of the background at the top and at the bottom
SCENES = {
    "balloon": (_balloon, *_SKY),
    "soccer ball": (_soccer_ball, (90, 160, 70), (60, 130, 50)),
    "mushroom": (_mushroom, (60, 90, 50), (50, 70, 35)),
    "umbrella": (_umbrella, (150, 165, 180), (190, 200, 205)),
    "wall clock": (_wall_clock, (235, 225, 205), (220, 205, 185)),
    "street sign": (_street_sign, *_SKY),
    "jack-o'-lantern": (_jack_o_lantern, (20, 20, 40), (50, 35, 30)),
}
