"""look: what a model answers to one image and where it looks, with the time that each part took."""

import dataclasses
import time
import warnings

import numpy as np

from keras_vit import analysis, checks
from keras_vit.data.images import preprocess
from keras_vit.evaluation import predict_prepared

_SHOWN_SIDE = 224  # images are shown at least as large
_LONGEST = 300  # characters of a sentence


@dataclasses.dataclass(frozen=True)
class Look:
    """What was found about one image.

    Attributes:
        name: of the model.
        inputs: float32 (1, height, width, channels), what the model was given.
        image: uint8 (height, width, 3), what it saw; small ones are enlarged to plain squares.
        answers: list of (label, score), best first.
        rollouts: dict from the name of a block to the rollout (rows, columns) up to it; empty without attention.
        remarks: list of sentences.
        milliseconds: dict from `"decode and resize"`, `"model"` and `"attention"` to how long it took.
    """

    name: str
    inputs: np.ndarray
    image: np.ndarray
    answers: list
    rollouts: dict
    remarks: list
    milliseconds: dict

    @property
    def blocks(self):
        """Names of the blocks whose attention is there."""
        return list(self.rollouts)


def look(model, read, top=5):
    """Shows one image to a model.

    Args:
        model: a classifier of keras_vit.
        read: function without arguments that gives the image, as `keras_vit.preprocess` takes it.
        top: number of answers.

    Returns:
        A `Look`. A model whose attention cannot be read, such as a ResNet, has no rollouts and a remark that says so.

    Raises:
        ValueError, TypeError: as `keras_vit.preprocess` and `keras_vit.predict`.
    """
    start = time.perf_counter()
    inputs = preprocess(read(), model.preprocessing)
    prepared = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:  # of a head of zeros
        warnings.simplefilter("always")
        answers = predict_prepared(model, inputs, top=top)[0]
    answered = time.perf_counter()
    remarks = [sentence(warning.message) for warning in caught if warning.category is UserWarning]
    rollouts, seconds = {}, {"decode and resize": prepared - start, "model": answered - prepared}
    try:
        rollouts = {name: maps[0] for name, maps in analysis.rollout_by_block(model, inputs).items()}
        seconds["attention"] = time.perf_counter() - answered
    except ValueError as error:
        remarks.append(sentence(f"there is no attention to show: {error}"))
    return Look(
        name=model.config.name,
        inputs=inputs,
        image=_shown(model.preprocessing.to_images(inputs)[0]),
        answers=answers,
        rollouts=rollouts,
        remarks=remarks,
        milliseconds={part: 1000 * took for part, took in seconds.items()},
    )


def sentence(message):
    """Returns a message of the package as one sentence on one line, at most 300 characters long."""
    text = " ".join(str(message).split()) or type(message).__name__
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def rollout_overlay(found, depth):
    """The image of a `Look` seen through the rollout over its first `depth` blocks: uint8 (height, width, 3)."""
    return analysis.overlay(found.image, found.rollouts[block_name(found, depth)])


def rollout_heat_map(found, depth):
    """The heat map of a `Look`'s rollout over its first `depth` blocks: uint8 (height, width, 3)."""
    return analysis.heat_map(found.image, found.rollouts[block_name(found, depth)])


def head_heat_maps(found, model, depth):
    """The heat map of each head of block number `depth`, from 1: list of uint8 (height, width, 3)."""
    maps = analysis.head_maps(model, found.inputs, block_name(found, depth))[0]
    return [analysis.heat_map(found.image, attention) for attention in maps]


def block_name(found, depth):
    """The name of block number `depth` of a `Look`, from 1; raises a `ValueError` where there is none."""
    checks.check_choice("depth", depth, range(1, len(found.blocks) + 1))
    return found.blocks[depth - 1]


def _shown(image):
    times = -(-_SHOWN_SIDE // min(image.shape[:2]))
    return analysis.overlay(image, np.ones((1, 1))).repeat(times, 0).repeat(times, 1)
