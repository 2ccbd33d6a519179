"""Read an uploaded file, and compute the predictions and the attention of a model for an image."""

import dataclasses
import pathlib
import time
import warnings

import numpy as np

from keras_vit import analysis, checks
from keras_vit.data import images as readers
from keras_vit.data.images import preprocess
from keras_vit.evaluation import predict_prepared

MAX_BYTES = 20_000_000
_SHOWN_SIDE = 224  # pixels
_LONGEST = 300  # characters of a sentence


def read_image(path):
    """Read a JPEG, PNG, BMP, GIF or WebP file, turned upright by its EXIF orientation: uint8 (height, width, 3).

    Raises:
        ValueError: if the file is damaged, too large or not an image. The message has its name without the folder.
    """
    path = pathlib.Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path.name} must have at most {MAX_BYTES:,} bytes; got {path.stat().st_size:,}")
    return np.asarray(readers.decode(path.name, path.read_bytes(), 3))


@dataclasses.dataclass(frozen=True)
class Look:
    """Predictions and attention of a model for one image.

    Attributes:
        name: name of the model.
        inputs: float32 (1, height, width, channels), the prepared image.
        image: uint8 (height, width, 3), the pixels of `inputs` that patches cover, enlarged for the page.
        answers: list of (label, score), best first.
        rollouts: dict from the name of a block to the rollout (rows, columns) up to it; empty without attention.
        remarks: list of sentences.
        milliseconds: dict from the name of a step to its time.
    """

    name: str
    inputs: np.ndarray
    image: np.ndarray
    answers: list
    rollouts: dict
    remarks: list
    milliseconds: dict

    def block(self, depth):
        """Return the name of block number `depth`, counted from 1."""
        checks.check_choice("depth", depth, range(1, len(self.rollouts) + 1))
        return list(self.rollouts)[depth - 1]

    def figures(self, depth):
        """Return (image, caption) pairs: the image, and two drawings of the rollout over the first `depth` blocks."""
        shown = [(self.image, "Model input")]
        if self.rollouts:
            name = self.block(depth)
            shown.append((analysis.overlay(self.image, self.rollouts[name]), f"Attention rollout up to {name}"))
            shown.append((analysis.heat_map(self.image, self.rollouts[name]), f"Heat map up to {name}"))
        return shown

    def heads(self, model, depth):
        """Return (heat map, caption) of each head of block number `depth`."""
        name = self.block(depth)
        maps = analysis.head_maps(model, self.inputs, name)[0]
        return [(analysis.heat_map(self.image, m), f"{name}, head {head}") for head, m in enumerate(maps, 1)]


def look(model, image, top=5):
    """Apply a classifier of keras_vit to one image and return a `Look`.

    Args:
        image: one image, as in `keras_vit.preprocess`.
        top: number of predictions.

    Raises:
        ValueError, TypeError: as in `keras_vit.preprocess` and `keras_vit.predict`. A model without attention maps,
            such as a ResNet, raises no error: the result has no rollouts, and a remark says why.
    """
    times = [time.perf_counter()]
    inputs = preprocess(image, model.preprocessing)
    times.append(time.perf_counter())
    with warnings.catch_warnings(record=True) as caught:  # such as the warning about a head of zeros
        warnings.simplefilter("always")
        answers = predict_prepared(model, inputs, top=top)[0]
    times.append(time.perf_counter())
    remarks = [sentence(warning.message) for warning in caught if warning.category is UserWarning]
    rollouts = {}
    try:
        rollouts = {name: maps[0] for name, maps in analysis.rollout_by_block(model, inputs).items()}
        times.append(time.perf_counter())
    except ValueError as error:
        remarks.append(sentence(f"there is no attention to show: {error}"))
    milliseconds = dict(zip(("preprocessing", "model", "attention"), 1000 * np.diff(times), strict=False))
    shown = enlarge(analysis.seen_images(model, inputs)[0], _SHOWN_SIDE)
    return Look(model.config.name, inputs, shown, answers, rollouts, remarks, milliseconds)


def enlarge(image, side):
    """Return an image as uint8 (height, width, 3), with each pixel repeated until both sides are at least `side`."""
    times = -(-side // min(image.shape[:2]))
    return analysis.overlay(image, np.ones((1, 1))).repeat(times, 0).repeat(times, 1)


def sentence(message):
    """Return a message of the package as one sentence on one line of at most 300 characters."""
    text = " ".join(str(message).split()) or type(message).__name__
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
    text = text[0].upper() + text[1:] if text.split()[0].isalpha() else text  # no name of a file or argument
    return text + ("" if text.endswith((".", "!", "?")) else ".")
