"""The example images of the demo page: `python docs/generate/scenes.py` draws them into keras_vit/demo/scenes/.

Each has one clear object, of ImageNet's classes; public domain (CC0 1.0).
"""

import math
import pathlib

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FOLDER = pathlib.Path(__file__).parents[2] / "keras_vit" / "demo" / "scenes"

_WIDTH, _HEIGHT = 480, 360  # pixels of a scene
_FINE = 2  # scenes are drawn this many times larger and then averaged, which smooths the edges


def draw_scene(name):
    """Draw the scene of that name in `SCENES`: uint8 (360, 480, 3), identical at every call."""
    paint, top, bottom = SCENES[name]
    size = (_WIDTH, _HEIGHT)
    mask = Image.linear_gradient("L").resize(size)
    background = Image.composite(Image.new("RGB", size, bottom), Image.new("RGB", size, top), mask)
    image = background.resize((_FINE * _WIDTH, _FINE * _HEIGHT), Image.Resampling.NEAREST)
    paint(ImageDraw.Draw(image))
    return np.asarray(image.resize(size, Image.Resampling.BOX))


def _around(centre, radii):
    """The corners of the box around an ellipse."""
    (x, y), (across, down) = centre, radii
    return [x - across, y - down, x + across, y + down]


def _polar(centre, radius, degrees):
    angle = math.radians(degrees)
    return centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle)


def _regular(corners, centre, radius, first):
    """A regular polygon whose first corner is at `first` degrees."""
    return [_polar(centre, radius, first + 360 * k / corners) for k in range(corners)]


def _balloon(draw):
    red, yellow, blue = (220, 50, 40), (250, 200, 50), (40, 90, 190)
    draw.rectangle((0, 640, 960, 720), (90, 140, 70))
    # stripe by stripe: half its width at the middle, at the shoulder and at the mouth
    for colour, middle, shoulder, mouth in ((red, 190, 156, 36), (yellow, 144, 110, 26), (blue, 96, 68, 18)):
        draw.ellipse(_around((660, 260), (middle, 200)), colour)
        draw.polygon([(660 - shoulder, 376), (660 + shoulder, 376), (660 + mouth, 520), (660 - mouth, 520)], colour)
    draw.ellipse(_around((660, 260), (48, 200)), yellow)
    for x in (632, 688):
        draw.line([(x, 520), (x, 560)], (60, 50, 40), 4)
    draw.rounded_rectangle((628, 560, 692, 608), 6, (130, 85, 45))


def _soccer_ball(draw):
    middle, radius = (300, 420), 90
    black, seam = (25, 25, 28), (90, 90, 95)
    draw.ellipse(_around((320, 592), (2 * radius, 36)), (45, 90, 40))
    for smaller in range(radius):  # lit from the upper left
        part = smaller / radius
        shade, white = 0.55 + 0.45 * part**0.7, 0.3 * max(0, part - 0.55)
        lit = min(255, round(245 * shade + 10 * white))
        draw.circle((300 - 0.6 * smaller, 420 - 0.7 * smaller), 2 * (radius - smaller), (lit, lit, lit))
    draw.polygon(_regular(5, middle, 60, -90), black)
    for k in range(5):
        angle = 72 * k - 90
        draw.line([_polar(middle, 60, angle), _polar(middle, 112, angle)], seam, 4)
        joint = _polar(middle, 124, angle + 36)
        draw.line([_polar(middle, 112, angle), joint, _polar(middle, 112, angle + 72)], seam, 4, "curve")
        draw.line([joint, _polar(middle, 172, angle + 36)], seam, 4)
        # seen from the side, so flattened along the radius
        centre = _polar(middle, 144, angle)
        pentagon = _regular(5, (0, 0), 1, 0)
        draw.polygon([_polar(_polar(centre, 28 * x, angle), 52 * y, angle + 90) for x, y in pentagon], black)


def _mushroom(draw):
    red, white, foot = (205, 35, 25), (250, 245, 235), (240, 230, 205)
    for k in range(120):  # grass
        x, y = 8 * k, 600 + 74 * k % 122
        draw.line([(x, y), (x + 46 * k % 34 - 16, y - 40 - 22 * k % 38)], (60 + 7 * k % 40, 125, 45), 4)
    draw.polygon([(260, 340), (340, 340), (360, 610), (240, 610)], foot)
    draw.ellipse(_around((300, 610), (60, 24)), foot)
    draw.ellipse(_around((300, 356), (176, 44)), (225, 205, 170))
    draw.pieslice(_around((300, 352), (200, 200)), 180, 360, red)
    draw.ellipse(_around((300, 352), (200, 32)), red)
    draw.ellipse(_around((300, 368), (172, 24)), (235, 220, 190))
    spots = ((190, 270, 22), (270, 210, 26), (370, 250, 24), (424, 316, 18), (260, 296, 20), (330, 316, 14))
    for x, y, size in (*spots, (144, 328, 14)):
        draw.ellipse(_around((x, y), (size, 0.8 * size)), white)


def _umbrella(draw):
    wood, red, seam = (60, 45, 35), (200, 30, 45), (140, 15, 30)
    draw.line([(660, 124), (660, 160)], wood, 12)
    draw.pieslice(_around((660, 380), (250, 230)), 180, 360, red)
    for centre, half in ((470, 60), (594, 66), (726, 66), (850, 60)):
        draw.ellipse(_around((centre, 380), (half, 28)), (170, 182, 192))
    draw.arc(_around((660, 380), (130, 230)), 180, 360, seam, 6)
    draw.line([(660, 150), (660, 380)], seam, 6)
    draw.line([(660, 372), (660, 590)], wood, 12)
    draw.arc(_around((636, 590), (28, 34)), 0, 180, wood, 12)


def _wall_clock(draw):
    centre, ink, font = (660, 300), (30, 30, 30), ImageFont.load_default(48)
    draw.circle((670, 314), 200, (190, 175, 155))
    draw.circle(centre, 200, (40, 40, 45))
    draw.circle(centre, 180, (250, 250, 248))
    for hour in range(12):
        draw.text(_polar(centre, 140, 30 * hour - 90), str(hour or 12), ink, font, "mm")
    for minute in range(60):
        draw.line([_polar(centre, 174, 6 * minute), _polar(centre, 164, 6 * minute)], (60, 60, 60), 2)
    for length, angle, width, colour in ((90, 214, 12, ink), (136, -38, 8, ink), (150, 105, 4, (200, 30, 30))):
        draw.line([centre, _polar(centre, length, angle)], colour, width)
    draw.circle(centre, 10, ink)


def _street_sign(draw):
    draw.rectangle((290, 280, 310, 720), (130, 130, 130))
    draw.polygon(_regular(8, (300, 280), 176, 22.5), (250, 250, 250))
    draw.polygon(_regular(8, (300, 280), 164, 22.5), (190, 20, 30))
    draw.text((300, 280), "STOP", (255, 255, 255), ImageFont.load_default(116), "mm")


def _jack_o_lantern(draw):
    light = (255, 230, 90)
    for x, half in ((-60, 100), (60, 100), (-32, 104), (32, 104), (0, 100)):
        draw.ellipse(_around((660 + 2 * x, 400), (half, 176)), (235 - abs(x), 120 - abs(x) // 2, 20))
    draw.rounded_rectangle((642, 170, 678, 240), 10, (80, 100, 40))
    for side in (-1, 1):
        draw.polygon([(660 + 90 * side, 310), (660 + 40 * side, 380), (660 + 140 * side, 380)], light)
    draw.polygon([(660, 384), (634, 428), (686, 428)], light)
    upper = [(510, 444), (560, 468), (580, 448), (630, 480), (660, 460), (690, 480), (740, 448), (760, 468), (810, 444)]
    lower = [(750, 524), (700, 504), (660, 540), (620, 504), (570, 524)]
    draw.polygon([*upper, *lower], light)


_SKY = (90, 150, 220), (200, 225, 245)

# name -> function that draws the object, colours of the background at the top and at the bottom
SCENES = {
    "balloon": (_balloon, *_SKY),
    "soccer ball": (_soccer_ball, (90, 160, 70), (60, 130, 50)),
    "mushroom": (_mushroom, (60, 90, 50), (50, 70, 35)),
    "umbrella": (_umbrella, (150, 165, 180), (190, 200, 205)),
    "wall clock": (_wall_clock, (235, 225, 205), (220, 205, 185)),
    "street sign": (_street_sign, *_SKY),
    "jack-o'-lantern": (_jack_o_lantern, (20, 20, 40), (50, 35, 30)),
}

if __name__ == "__main__":
    for scene in SCENES:
        Image.fromarray(draw_scene(scene)).save(FOLDER / f"{scene}.png", optimize=True)
