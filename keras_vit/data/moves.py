"""Images and their answers, moved together into the input of a task model: crops, flips, scales and rotations."""

import dataclasses
import math

import numpy as np
from PIL import Image

from keras_vit.data.answers import VOID, Answer, areas_of
from keras_vit.data.augment.values import check_number, check_span
from keras_vit.tasks.inputs import Placement, placements, rendered

_ATTEMPTS = 10  # to draw a crop with a target
_EMPTY = {"label_map": VOID, "depth": 0, "masks": False}  # the values of maps where there is no image
_MOST_SCALE = 4.0


def moved(pixels, answer, rng, moves, preprocessing, flip_pairs=()):
    """Return an input, float32 (height, width, channels) on [0, 255], and the answer in its pixels.

    Args:
        pixels: uint8 (height, width, 3), upright.
        answer: an `Answer`, see `Answer.as_targets`. With keypoints it has one person.
        rng: NumPy generator.
        moves: dict from names in `OF_IMAGES` or `OF_PERSONS` to functions that draw a number from `rng`.
        preprocessing: a `Preprocessing`.
        flip_pairs: numbers of left and right keypoints.

    Returns:
        `(pixels, answer)`; boxes are centre x, centre y, width and height as shares of the input, and `areas` are those
        in the input. Objects outside it are left out.
    """
    if answer.keypoints is not None:
        return _person(pixels, answer, rng, moves, preprocessing, flip_pairs)
    if "flip" in moves and moves["flip"](rng):
        pixels, answer = _mirrored(pixels, answer)
    for _ in range(_ATTEMPTS):
        place = _placement(pixels.shape[:2], rng, moves, preprocessing)
        found = _placed(answer, place)
        if found.labels is None or len(found.labels):
            break
    if "scale_jitter" in moves and preprocessing.sizing == "square":
        preprocessing = preprocessing.replace(sizing="longest")  # without the filter, padded with black too
    return rendered(pixels, [place], preprocessing)[0], found


def _mirrored(pixels, answer):
    """Return image and answer mirrored left to right."""
    changed = {name: getattr(answer, name)[..., ::-1] for name in _EMPTY if getattr(answer, name) is not None}
    if answer.boxes is not None:
        changed["boxes"] = answer.boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1) + np.tile((pixels.shape[1], 0), 2)
    return pixels[:, ::-1], dataclasses.replace(answer, **changed)


def _placement(size, rng, moves, preprocessing):
    """Return where an image of a size (height, width) is in its input; crops are drawn."""
    if "scale_jitter" in moves:
        sides = preprocessing.image_size
        factor = moves["scale_jitter"](rng) * min(np.divide(sides, size))
        resized = tuple(max(round(side * factor), 1) for side in size)
    else:
        place = placements(preprocessing, size)[0]
        if preprocessing.sizing != "windows":
            return place
        resized, sides = place.resized, place.size
    top, left = (-float(rng.integers(max(old - new, 0) + 1)) for old, new in zip(resized, sides, strict=True))
    return Placement((resized[1] / size[1], resized[0] / size[0]), (left, top), resized, sides)


def _placed(answer, place):
    """Return an answer in pixels of an input, boxes as shares of it; objects outside are left out."""
    maps = {name: getattr(answer, name) for name in _EMPTY if getattr(answer, name) is not None}
    changed = {name: _sampled(value, place, _EMPTY[name]) for name, value in maps.items()}
    if answer.labels is None:
        return Answer(**changed)
    if answer.masks is not None:
        areas = areas_of(changed["masks"])
    else:
        height, width = place.size
        edges = np.clip(place.to_input(answer.boxes) / (width, height, width, height), 0, 1)
        low, high = edges[:, :2], edges[:, 2:]
        areas, changed["boxes"] = (high - low).prod(1), np.concatenate([(low + high) / 2, high - low], 1)
    changed |= {"labels": answer.labels, "areas": areas}
    return Answer(**{name: value[areas > 0] for name, value in changed.items()})


def _sampled(maps, place, fill):
    """Return maps (..., height, width) in pixels of an input: nearest neighbour, with half-pixel centres."""
    axes = zip(place.size, place.offset[::-1], place.scale[::-1], strict=True)
    rows, columns = (np.floor((np.arange(side) + 0.5 - offset) / scale).astype(int) for side, offset, scale in axes)
    found = maps.take(rows, -2, mode="clip").take(columns, -1, mode="clip")
    found[..., (rows < 0) | (rows >= maps.shape[-2]), :] = fill
    found[..., (columns < 0) | (columns >= maps.shape[-1])] = fill
    return found


def _person(pixels, answer, rng, moves, preprocessing, flip_pairs):
    """Return the input around a person, and its keypoints in it."""
    is_mirrored = "flip" in moves and moves["flip"](rng)
    scale = moves["scale"](rng) if "scale" in moves else 1.0
    angle = math.radians(moves["rotate"](rng)) if "rotate" in moves else 0.0
    box, points = answer.boxes[0].astype("float64"), answer.keypoints[0]
    centre, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2 * scale
    place = placements(preprocessing, pixels.shape[:2], [[*(centre - half), *(centre + half)]])[0]
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = np.array(place.scale)[:, None] * turn  # from the image to the input, with `shift`
    shift = place.to_input(centre - turn @ centre)
    if angle:
        shown = _turned(pixels, (*place.size, preprocessing.channels), matrix, shift)
    else:
        shown = rendered(pixels, [place], preprocessing)[0]
    xy, visible = points[:, :2] @ matrix.T + shift, points[:, 2:]
    if is_mirrored:
        order = np.arange(len(points))
        for left, right in flip_pairs:
            order[[left, right]] = right, left
        shown, xy, visible = shown[:, ::-1], xy[order] * (-1, 1) + (place.size[1] - 1, 0), visible[order]
    is_inside = ((xy >= -0.5) & (xy < np.array(place.size[::-1]) - 0.5)).all(1, keepdims=True)
    xy, visible = np.where(is_inside & (visible > 0), xy, 0), visible * is_inside
    return shown, Answer(keypoints=np.concatenate([xy, visible], 1).astype("float32")[None])


def _turned(pixels, shape, matrix, shift):
    """Return an input in which the centre of the pixel (x, y) of an image is at `matrix @ (x, y) + shift`."""
    back = np.linalg.inv(matrix)
    start = 0.5 - back @ (shift + 0.5)  # Pillow's coordinates are from the corners of the first pixels
    coefficients = (*back[0], start[0], *back[1], start[1])
    image = Image.fromarray(pixels).convert("RGB" if shape[2] == 3 else "L")
    shown = image.transform(shape[1::-1], Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    return np.asarray(shown, "float32").reshape(shape)


def _flip():
    return lambda rng: rng.random() < 0.5


def _scale_jitter(low, high):
    low, high = check_span("low", low, "high", high, _MOST_SCALE)
    return lambda rng: rng.uniform(low, high)


def _scale(deviation):
    deviation = check_number("deviation", deviation, 0.0, 0.9)
    return lambda rng: 1 + np.clip(deviation * rng.standard_normal(), -deviation, deviation)


def _rotate(degrees, probability=0.6):
    degrees = check_number("degrees", degrees, 0.0, 90.0)
    probability = check_number("probability", probability, 0.0, 1.0)

    def draw(rng):
        is_turned, angle = rng.random() < probability, degrees * rng.standard_normal()
        return float(np.clip(angle, -2 * degrees, 2 * degrees)) * is_turned

    return draw


# as `augment.OPERATIONS`, but the functions draw a number from a NumPy generator
OF_IMAGES = {"flip": ("flip", _flip), "scale_jitter": ("scale_jitter", _scale_jitter)}
OF_PERSONS = {"flip": ("flip", _flip), "scale": ("scale", _scale), "rotate": ("rotate", _rotate)}
