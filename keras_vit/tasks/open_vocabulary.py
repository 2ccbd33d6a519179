"""Open-vocabulary detection: images as OWL-ViT and OWLv2 get them, and their answers as boxes in pixels."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.tasks.boxes import Boxes
from keras_vit.tasks.drawing import check_array, check_names, sigmoid
from keras_vit.typing import Size

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_FADED = 0.1  # of the best score: what an example finds with less than this is dropped


def square_image(
    image: npt.ArrayLike,
    size: int,
    fill: float = 0.0,
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
) -> np.ndarray:
    """Return an image as the input of OWLv2.

    The pixels are divided by 255. The image is padded to a square at the bottom and the right, resized, and then
    normalised as `(x - mean) / std`, padding included. The resize is linear interpolation with half-pixel centres after
    a Gaussian filter of standard deviation `(factor - 1) / 2`, cut off at 4 standard deviations, where `factor` is the
    old side by the new one; there is no filter for an enlargement. Pixels outside are mirrored at the border pixels.

    Args:
        image: (height, width, 3), pixel values from 0 to 255.
        size: side of the result in pixels; published models have 960 or 1008.
        fill: value of the padding, from 0 to 1, before normalising; the authors of OWL-ViT pad with 0.5.
        mean, std: one number per channel.

    Returns:
        float32 (size, size, 3)

    Raises:
        ValueError: on another shape or range.
    """
    pixels = check_array("image", image, ("height", "width", 3))
    checks.check_integer("size", size)
    fill = checks.check_number("fill", fill, "number from 0 to 1", lambda number: 0 <= number <= 1)
    centre, spread = (check_array(name, value, (3,)) for name, value in (("mean", mean), ("std", std)))
    if pixels.min() < 0 or pixels.max() > 255:
        raise ValueError(f"image must have pixel values from 0 to 255; got {pixels.min():g} to {pixels.max():g}")
    if not (spread > 0).all():
        raise ValueError(f"std must be above 0; got {spread.tolist()}")
    height, width = pixels.shape[:2]
    side = max(height, width)
    square = np.full((side, side, 3), fill)
    square[:height, :width] = pixels / 255.0
    return ((_resized(_resized(square, 0, size), 1, size) - centre) / spread).astype("float32")


def _resized(x, axis, size):
    """Return an array with one axis filtered and interpolated, see `square_image`."""
    length = x.shape[axis]
    factor = length / size
    sigma = max(0.0, (factor - 1) / 2)
    radius = math.floor(4 * sigma + 0.5)
    taps = np.arange(-radius, radius + 1)
    gaussian = np.exp(-0.5 * (taps / sigma) ** 2) if radius else np.ones(1)
    gaussian /= gaussian.sum()
    places = _mirrored((np.arange(size) + 0.5) * factor - 0.5, length)
    low = np.floor(places).astype(int)
    share = places - low
    shape = [-1 if one == axis else 1 for one in range(x.ndim)]
    result = 0.0
    for indices, weights in ((low, 1 - share), (low + 1, share)):
        for tap, weight in zip(taps, gaussian, strict=True):
            part = np.take(x, _mirrored(indices + tap, length), axis)
            result = result + (weight * weights).reshape(shape) * part
    return result


def _mirrored(places, length):
    """Return places on an axis, where those outside are mirrored at the centres of the first and last pixel."""
    if length == 1:
        return np.zeros_like(places)
    last = length - 1
    return last - np.abs(last - np.mod(places, 2 * last))


def query_boxes(
    logits: npt.ArrayLike,
    boxes: npt.ArrayLike,
    size: Size,
    threshold: float = 0.1,
    names: Sequence[str] | None = None,
    square: bool = True,
) -> Boxes:
    """Return the boxes of one image whose best query has a score above a threshold, in the order of the patches.

    Boxes that overlap are not merged, and edges outside the image are not moved into it.

    Args:
        logits: (patches, queries).
        boxes: (patches, 4): centre x, centre y, width and height as shares of the input of the model.
        size: (height, width) of the upright image, before padding and resizing.
        threshold: number in [0, 1); the score is the sigmoid of the largest logit.
        names: names of the queries.
        square: whether the image was padded to a square (OWLv2); False if it was resized to one (OWL-ViT in
            transformers).

    Returns:
        `Boxes`, whose labels are the indices of the queries

    Raises:
        ValueError: on another shape or range.
    """
    scores, labels, edges = _answers(logits, boxes, size, square)
    known = check_names("names", names, np.shape(logits)[1])
    kept = scores > checks.check_rate("threshold", threshold)
    labels = labels[kept]
    return Boxes(edges[kept], scores[kept], labels, known and tuple(known[label] for label in labels))


def example_boxes(
    logits: npt.ArrayLike,
    boxes: npt.ArrayLike,
    size: Size,
    threshold: float = 0.0,
    overlap: float = 0.3,
    square: bool = True,
) -> Boxes:
    """Return the boxes of one image that queries of example images find, in the order of the patches.

    A box is dropped if it overlaps with a better box that is kept (non-maximum suppression), or if its score, the
    sigmoid of its largest logit, is below the threshold. The scores are then stretched so that the best of the image is
    1 and a tenth of it is 0; boxes with 0 are dropped.

    Args:
        logits: (patches, queries).
        boxes, size, square: as in `query_boxes`.
        threshold: minimum score before the stretch, a number in [0, 1).
        overlap: maximum IoU of two boxes, a number in [0, 1).

    Returns:
        `Boxes`, whose labels are the indices of the queries

    Raises:
        ValueError: on another shape or range.
    """
    scores, labels, edges = _answers(logits, boxes, size, square)
    threshold, overlap = checks.check_rate("threshold", threshold), checks.check_rate("overlap", overlap)
    kept = np.zeros(len(scores), bool)
    for index in np.argsort(-scores, kind="stable"):
        kept[index] = not (_iou(edges[index], edges[kept]) > overlap).any()
    kept &= scores >= threshold
    best = scores[kept].max(initial=0.0)
    if best > 0:
        scores = np.clip((scores - _FADED * best) / ((1 - _FADED) * best), 0.0, 1.0)
    kept &= scores > 0
    return Boxes(edges[kept], scores[kept], labels[kept])


def _answers(logits, boxes, size, square):
    """Return the score and the query of each patch, and the edges of its box in pixels."""
    logits = check_array("logits", logits, ("patches", "queries"))
    boxes = check_array("boxes", boxes, (len(logits), 4))
    height, width = checks.check_pair("size", size)
    if checks.check_flag("square", square):
        height = width = max(height, width)
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    edges = np.concatenate([middle - half, middle + half], -1) * (width, height, width, height)
    return sigmoid(logits.max(-1).astype("float64")), logits.argmax(-1), edges


def _iou(edges, others):
    """Return the intersection over union of one box and others: (4,) and (n, 4) -> (n,)."""
    shared = np.clip(np.minimum(edges[2:], others[:, 2:]) - np.maximum(edges[:2], others[:, :2]), 0, None).prod(-1)
    areas = [np.prod(one[..., 2:] - one[..., :2], axis=-1) for one in (edges, others)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
