"""The inputs of a task model for an image, and the affine map between both, which every answer uses."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.layers.position_grid import resize_matrix
from keras_vit.tasks.drawing import as_uint8, check_array, resize_map

_MOST = 2**24  # pixels of a resized image
_ENLARGED = 1.25  # factor of the box around a person, as in ViTPose's code
_PILLOW = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear_antialias": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


@dataclasses.dataclass(frozen=True)
class Placement:
    """Hold where an image is in an input of a model.

    For x and for y, `input = scale * image + offset`. Coordinates of edges, boxes and points are from the corner of the
    image. Those of a `box` are from the centre of the first pixel: the centres of the first and last pixel of the input
    lie on the edges of the enlarged box.

    Attributes:
        scale, offset: (x, y).
        resized: (height, width) of the image in pixels of the input.
        size: (height, width) of the input.
    """

    scale: tuple[float, float]
    offset: tuple[float, float]
    resized: tuple[int, int]
    size: tuple[int, int]

    def to_input(self, coordinates: np.ndarray) -> np.ndarray:
        """Return coordinates of the image in pixels of the input.

        Args:
            coordinates: x and y, or x0, y0, x1 and y1: (..., 2) or (..., 4).
        """
        times = coordinates.shape[-1] // 2
        return coordinates * np.tile(self.scale, times) + np.tile(self.offset, times)

    def to_image(self, coordinates: np.ndarray) -> np.ndarray:
        """Return coordinates of the input in pixels of the image.

        Args:
            coordinates: as in `to_input`.
        """
        times = coordinates.shape[-1] // 2
        return (coordinates - np.tile(self.offset, times)) / np.tile(self.scale, times)


def prepare(
    image: npt.ArrayLike, preprocessing: Preprocessing, boxes: npt.ArrayLike | None = None
) -> tuple[np.ndarray, list[Placement]]:
    """Return the inputs of a task model for an image, and where the image is in each.

    Args:
        image: (height, width, 1 or 3) or (height, width), upright: uint8, or floats in [0, 1], which are rounded to 8
            bits.
        preprocessing: a `Preprocessing` without `crop`, such as `model.preprocessing`.
        boxes: with `sizing="box"`: (boxes, 4), left, top, right and bottom edges in pixels; None is the whole image.

    Returns:
        Tuple of the inputs, float32 (inputs, height, width, channels), and a `Placement` for each. There are several
        for `windows` and boxes.

    Raises:
        ValueError: on another shape or range.
    """
    pixels = as_uint8("image", image)
    places = placements(preprocessing, pixels.shape[:2], boxes)
    mean, std = (np.array(values, "float32") for values in preprocessing.statistics)
    return (rendered(pixels, places, preprocessing) / np.float32(255) - mean) / std, places


def rendered(pixels: np.ndarray, places: Sequence[Placement], preprocessing: Preprocessing) -> np.ndarray:
    """Return the pixels of inputs before mean and standard deviation: float32 (inputs, height, width, channels).

    Args:
        pixels: uint8 (height, width, 3), upright.
        places: where the image is in each input.
        preprocessing: as in `prepare`.

    Raises:
        ValueError: on an unknown interpolation.
    """
    if preprocessing.channels == 1:
        pixels = np.asarray(Image.fromarray(np.array(pixels)).convert("L"))[..., None]
    show = _SHOWN.get(preprocessing.sizing or "", _resized)
    inputs = np.array([*show(pixels, places, preprocessing)], "float32")
    size = places[0].size if places else preprocessing.image_size
    return inputs.reshape(len(places), *size, preprocessing.channels)


def placements(
    preprocessing: Preprocessing, size: tuple[int, int], boxes: npt.ArrayLike | None = None
) -> list[Placement]:
    """Return where an image is in each of its inputs.

    Args:
        preprocessing: as in `prepare`.
        size: (height, width) of the upright image in pixels.
        boxes: as in `prepare`.

    Raises:
        ValueError: on another shape or range.
    """
    height, width = checks.check_pair("size", size)
    if preprocessing.crop is not None:
        raise ValueError(f"preprocessing must have no crop, as answers are for the whole image; got {preprocessing}")
    if preprocessing.sizing == "box":
        boxes = np.array([[0, 0, width, height]] if boxes is None else boxes, "float64")
        boxes = check_array("boxes", boxes, (len(boxes), 4)) if boxes.size else []
        return [_around(box, preprocessing.image_size) for box in boxes]
    if boxes is not None:
        raise ValueError(f"preprocessing must have sizing='box' for boxes; got sizing={preprocessing.sizing!r}")
    rows, columns = resized = preprocessing.resized((height, width))
    if rows * columns > _MOST:
        got = f"{width} x {height} pixels, which would become {columns} x {rows}"
        raise ValueError(f"image must have at most {_MOST} pixels after the resize; got {got} (cut it into parts)")
    scale, sides = (columns / width, rows / height), resized
    if preprocessing.sizing == "square":
        scale = (rows / max(height, width), columns / max(height, width))
    elif preprocessing.pad or preprocessing.sizing in ("longest", "windows"):
        sides = preprocessing.image_size
    elif preprocessing.sizing == "center_padding":
        sides = rows + -rows % preprocessing.multiple, columns + -columns % preprocessing.multiple
    if preprocessing.sizing != "windows":
        is_centred = preprocessing.sizing == "center_padding"
        left, top = ((sides[axis] - resized[axis]) // 2 * is_centred for axis in (1, 0))
        return [Placement(scale, (float(left), float(top)), resized, sides)]
    side, long = min(resized), max(resized)
    count = math.ceil(long / side)
    step = side - (count * side - long) / max(count - 1, 1)
    starts = [-float(int(index * step)) for index in range(count)]
    offsets = [(start, 0.0) if columns > rows else (0.0, start) for start in starts]
    return [Placement(scale, offset, resized, (side, side)) for offset in offsets]


def _around(box, size):
    """Return the placement of the region around a person: the box in the aspect ratio of the input, enlarged."""
    x0, y0, x1, y1 = (float(edge) for edge in box)
    rows, columns = size
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"boxes must have left < right and top < bottom; got {[x0, y0, x1, y1]}")
    width = _ENLARGED * max(x1 - x0, (y1 - y0) * columns / rows)
    height = width * rows / columns
    scale = (max(columns - 1, 1) / width, max(rows - 1, 1) / height)
    corner = ((x0 + x1 - width) / 2, (y0 + y1 - height) / 2)
    return Placement(scale, (-corner[0] * scale[0], -corner[1] * scale[1]), size, size)


def _resized(pixels, places, preprocessing):
    """Return the image in its new size, cut to each window, or padded."""
    (rows, columns), method = places[0].resized, preprocessing.interpolation
    if method in _PILLOW:
        whole = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
        whole = np.asarray(whole.resize((columns, rows), _PILLOW[method])).reshape(rows, columns, -1)
    elif method == "bilinear":
        whole = resize_map(pixels, (rows, columns))
    else:
        raise ValueError(f"interpolation must be bilinear or one of {', '.join(_PILLOW)} for tasks; got {method!r}")
    has_mean = preprocessing.pad or preprocessing.sizing == "center_padding"
    fill = 255 * np.array(preprocessing.mean) if has_mean else np.zeros(len(preprocessing.mean))
    for place in places:
        left, top = (int(offset) for offset in place.offset)
        shown = np.tile(fill, (*place.size, 1))
        part = whole[max(-top, 0) : place.size[0] - top, max(-left, 0) : place.size[1] - left]
        shown[max(top, 0) :, max(left, 0) :][: part.shape[0], : part.shape[1]] = part
        yield shown


def _squared(pixels, places, preprocessing):
    """Return the image padded with black to a square and resized.

    The resize is linear interpolation with half-pixel centres after a Gaussian filter of standard deviation
    `(factor - 1) / 2`, cut off at 4 standard deviations, where `factor` is the old side by the new one; there is no
    filter for an enlargement. Pixels outside are mirrored at the border pixels.
    """
    height, width = pixels.shape[:2]
    vertical, horizontal = (_filter(max(height, width), side) for side in places[0].size)
    yield np.einsum(
        "yr,xc,rcd->yxd", vertical[:, :height], horizontal[:, :width], pixels.astype("float32"), optimize=True
    )


def _filter(length, size):
    """Return the matrix (size, length) that filters and interpolates one axis, see `_squared`."""
    factor = length / size
    sigma = max(0.0, (factor - 1) / 2)
    taps = np.arange(-math.floor(4 * sigma + 0.5), math.floor(4 * sigma + 0.5) + 1)
    gaussian = np.exp(-0.5 * (taps / sigma) ** 2) if len(taps) > 1 else np.ones(1)
    places = _mirrored((np.arange(size) + 0.5) * factor - 0.5, length)
    low = np.floor(places).astype(int)
    matrix = np.zeros((size, length), "float32")
    for start, share in ((low, low + 1 - places), (low + 1, places - low)):
        for tap, weight in zip(taps, gaussian / gaussian.sum(), strict=True):
            np.add.at(matrix, (np.arange(size), _mirrored(start + tap, length)), share * weight)
    return matrix


def _mirrored(places, length):
    """Return places on an axis, where those outside are mirrored at the centres of the first and last pixel."""
    last = length - 1
    return last - np.abs(last - np.mod(places, 2 * last)) if last else np.zeros_like(places)


def _warped(pixels, places, preprocessing):
    """Return the region of each box, bilinear, in whole bytes, with black outside the image."""
    for place in places:
        (columns, horizontal), (rows, vertical) = (
            _taps((np.arange(side) - offset) / scale, old)
            for side, offset, scale, old in zip(
                place.size[::-1], place.offset, place.scale, pixels.shape[1::-1], strict=True
            )
        )
        region = pixels[rows, columns].astype("float64")
        yield np.floor(np.einsum("yr,xc,rcd->yxd", vertical, horizontal, region, optimize=True) + 0.5)


def _taps(places, old):
    """Return the pixels that linear interpolation at places needs, as a slice, and the matrix (places, pixels).

    Places outside the `old` pixels have no weights.
    """
    first, last = (int(np.clip(place, 0, old - 1)) for place in (np.floor(places[0]), np.ceil(places[-1])))
    weights = np.maximum(1 - np.abs(places[:, None] - np.arange(first, last + 1)), 0)
    return slice(first, last + 1), weights * ((places >= 0) & (places <= old - 1))[:, None]


_SHOWN = {"square": _squared, "box": _warped}


def map_to_image(maps: np.ndarray, place: Placement, size: tuple[int, int]) -> np.ndarray:
    """Return a map of an input in pixels of the image: bilinear to the input, cut to the image, bilinear to its size.

    Args:
        maps: (rows, columns), for the whole input.
        place: its `Placement`, without an offset.
        size: (height, width) of the image.

    Returns:
        (height, width), with half-pixel centres and without antialiasing
    """
    sides = zip(maps.shape, place.size, place.resized, size, strict=True)
    vertical, horizontal = (
        resize_matrix("bilinear", cut, new) @ resize_matrix("bilinear", old, whole)[:cut]
        for old, whole, cut, new in sides
    )
    return vertical @ maps @ horizontal.T


def boxes_to_image(boxes: np.ndarray, place: Placement) -> np.ndarray:
    """Return the edges (boxes, 4) in pixels of the image: left, top, right, bottom.

    Args:
        boxes: (boxes, 4): centre x, centre y, width and height as shares of the input.
        place: its `Placement`.
    """
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    height, width = place.size
    return place.to_image(np.concatenate([middle - half, middle + half], -1) * (width, height, width, height))
