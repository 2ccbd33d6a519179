"""Drawn scenes of discs, squares and rings, with the answers of every task, for `train_heads`.

All objects have the same size in metres, so that near objects are large, and are in front of a tilted wall. With the
distance, all colours fade to grey.
"""

import dataclasses
import math

import numpy as np
from PIL import Image, ImageDraw

SIZE = 128
CLASSES = ("wall", "disc", "square", "ring")  # the wall is stuff
KEYPOINTS = ("head", "hand with a ball", "other hand", "foot on the side of the ball", "other foot")
MOST, LEAST = 6, 40  # objects of a scene, and visible pixels of an object
FADED, GREY = 4.0, 128.0  # metres after which the share of the colour is 1 / e, and the colour far away
RADIUS = 28.0  # pixels at one metre


@dataclasses.dataclass(frozen=True)
class Scenes:
    """Hold scenes and their answers as arrays whose first axis is that of the scenes.

    Attributes:
        images: uint8 (scenes, SIZE, SIZE, 3).
        segments: int32 (scenes, SIZE, SIZE), 0 for the wall and n for the n-th object.
        labels: int32 (scenes, 1 + MOST), the class of each segment, -1 after the last one.
        depth: float32 (scenes, SIZE, SIZE), metres.
        keypoints: float32 (scenes, KEYPOINTS, 3), x, y and visibility, of the figure if there is one.
    """

    images: np.ndarray
    segments: np.ndarray
    labels: np.ndarray
    depth: np.ndarray
    keypoints: np.ndarray

    @property
    def masks(self):
        """Return the pixels of each segment, bool (scenes, 1 + MOST, SIZE, SIZE)."""
        return self.segments[:, None] == np.arange(1 + MOST)[:, None, None]

    @property
    def label_map(self):
        """Return the class of each pixel, int32 (scenes, SIZE, SIZE)."""
        return np.stack([labels[ids] for labels, ids in zip(self.labels, self.segments, strict=True)])


def scenes(count, seed, figure=False):
    """Return `Scenes`; with `figure`, one person is drawn over each, and is in the keypoints alone."""
    rng = np.random.default_rng(seed)
    rows = [_scene(rng, figure) for _ in range(count)]
    return Scenes(*(np.stack(values) for values in zip(*rows, strict=True)))


def _scene(rng, figure):
    y, x = np.indices((SIZE, SIZE)) / (SIZE - 1) - 0.5
    angle, (near, far) = rng.uniform(0, 2 * math.pi), np.sort(rng.uniform(3.5, 9, 2))
    share = np.clip(0.5 + x * math.cos(angle) + y * math.sin(angle), 0, 1)
    depth = near * (far / near) ** share
    segments, colours = np.zeros((SIZE, SIZE), "int32"), np.empty((SIZE, SIZE, 3))
    colours[:] = rng.uniform(0, 255, 3)
    labels = np.full(1 + MOST, -1, "int32")
    distances = np.sort(np.exp(rng.uniform(0, math.log(3.5), rng.integers(2, MOST + 1))))[::-1]
    for number, distance in enumerate(distances, 1):  # the far ones first
        label = rng.integers(1, len(CLASSES))
        shape = _shape(CLASSES[label], rng.uniform(-0.4, 0.4, 2), RADIUS / distance / SIZE, x, y)
        depth[shape], segments[shape], labels[number] = distance, number, label
        colours[shape] = rng.uniform(0, 255, 3)
    labels[0] = 0
    if np.bincount(segments.ravel(), minlength=number + 1).min() < LEAST:
        return _scene(rng, figure)
    colours += rng.normal(0, 25, (SIZE, SIZE, 1))
    colours = GREY + (colours - GREY) * np.exp(-depth / FADED)[..., None]
    image = np.clip(colours + rng.normal(0, 6, colours.shape), 0, 255).astype("uint8")
    keypoints = np.zeros((len(KEYPOINTS), 3), "float32")
    if figure:
        image, keypoints = _with_figure(rng, image)
    return image, segments, labels, depth.astype("float32"), keypoints


def _shape(name, centre, radius, x, y):
    """Return the pixels of a shape."""
    dx, dy = x - centre[0], y - centre[1]
    away = np.hypot(dx, dy)
    if name == "disc":
        return away < radius
    return (
        np.maximum(abs(dx), abs(dy)) < 0.9 * radius if name == "square" else abs(away - 0.75 * radius) < 0.25 * radius
    )


def _with_figure(rng, image):
    """Return the image with a person, who holds a ball in one of both hands, and the keypoints."""
    points = np.full((1, 2), -1.0)
    while points.min() < 4 or points.max() > SIZE - 5:
        length, lean, side = rng.uniform(50, 95), rng.uniform(-0.5, 0.5), rng.choice((-1, 1))
        up, across = np.array([math.sin(lean), -math.cos(lean)]), np.array([math.cos(lean), math.sin(lean)])
        hips = rng.uniform(0, SIZE, 2)
        neck = hips + 0.35 * length * up
        arms, legs = rng.uniform(-0.9, 0.9, 2), rng.uniform(0.1, 0.9, 2)
        hands, feet = [], []
        for sign, arm, leg in zip((side, -side), arms, legs, strict=True):
            hands.append(neck + 0.32 * length * (sign * math.cos(arm) * across + math.sin(arm) * up))
            feet.append(hips + 0.42 * length * (sign * math.sin(leg) * across - math.cos(leg) * up))
        points = np.array([neck + 0.13 * length * up, *hands, *feet])
    drawing = Image.fromarray(image)
    pen, width, colour = ImageDraw.Draw(drawing), round(0.06 * length), tuple(rng.integers(0, 256, 3).tolist())
    for start, end in ((neck, hips), *((neck, hand) for hand in hands), *((hips, foot) for foot in feet)):
        pen.line([*start, *end], colour, width)
    for (a, b), radius in ((points[0], 0.11 * length), (points[1], 0.07 * length)):
        pen.ellipse([a - radius, b - radius, a + radius, b + radius], colour)
    return np.asarray(drawing), np.hstack([points, np.full((len(points), 1), 2)]).astype("float32")
