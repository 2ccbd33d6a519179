"""Unreadable images in a pipeline: skip, count and log them, and raise an error if there are too many."""

import logging
import re
import threading

import tensorflow as tf

from keras_vit import checks
from keras_vit.data import images

_LOG = logging.getLogger("keras_vit.data")
_NAMED = 5  # images listed in the error


class UnusableDataError(ValueError):
    """Report unusable images or labels of a source; the message says why."""


def data_error(error: BaseException) -> UnusableDataError | None:
    """Return the `UnusableDataError` behind a TensorFlow error of a pipeline.

    Args:
        error: exception from `model.fit`, `model.evaluate` or an iterator, usually a `tf.errors.OpError`.

    Returns:
        An `UnusableDataError`, which is a `ValueError`, with only its own message; None if `error` has another cause.
    """
    found = re.search(rf"{UnusableDataError.__name__}: (.*)", str(error))
    return UnusableDataError(found[1].strip()) if isinstance(error, tf.errors.OpError) and found else None


class Unreadable:
    """The unreadable images that one pipeline has found so far.

    Args:
        source: the `ImageSource` of the pipeline.
        channels: channels of the model input; the error of decoding to these channels is the logged reason.
        max_corrupt: maximum share of unreadable images, in [0, 1].
        needed: number of images that must be readable, whatever `max_corrupt` is: 1 if readable images replace
            unreadable ones, otherwise 0.

    Attributes:
        allowed: maximum number of unreadable images; with more, `report` raises an error.
        needed: see the argument.
        faults: dict from the position of an image to what is wrong with its labels; `report` raises an error with it.
    """

    def __init__(self, source, channels, max_corrupt, needed=0):
        checks.check_number("max_corrupt", max_corrupt, "number in [0, 1]", lambda share: 0.0 <= share <= 1.0)
        # Not the source itself: TensorFlow keeps everything a numpy_function refers to until the process ends.
        self._name_of = source.describe or (source.files.__getitem__ if source.files else "image {}".format)
        self.needed, self._size, self._channels, self._max_corrupt = needed, source.size, channels, float(max_corrupt)
        self.allowed = min(int(self._max_corrupt * self._size), self._size - needed)
        self.faults, self._found, self._lock = {}, {}, threading.Lock()

    @property
    def positions(self):
        """Positions in the source in ascending order."""
        return sorted(self._found)

    def report(self, positions, opened, contents):
        """Log images that were not reported before; raise an error once there are too many, or for one of `faults`.

        Args:
            positions: int64 array, positions of the images in the source.
            opened: int64 array, the `positions` whose file or record could be read.
            contents: array of bytes, the contents of the `opened` files or records.
        """
        opened = dict(zip(opened.tolist(), contents, strict=True))
        with self._lock:
            for position in positions.tolist():
                if position in self.faults:
                    raise UnusableDataError(" ".join(self.faults[position].split()))
                if position not in self._found:
                    self._found[position] = self._reason(position, opened.get(position))
                    if len(self._found) <= self.allowed:
                        told = (self._found[position], len(self._found), self._size)
                        _LOG.warning("Image skipped: %s (%d of %d skipped so far)", *told)
            if len(self._found) > self.allowed:
                raise UnusableDataError(self._summary())

    def _reason(self, position, contents):
        name = self._name_of(position)
        if contents is None:
            return f"{name} cannot be read"
        try:
            images.decode(name, contents, self._channels)
        except ValueError as error:
            return " ".join(str(error).split())  # one line, so that data_error finds its end
        return f"{name} was decoded but could not be cropped or augmented"

    def _summary(self):
        reasons = [self._found[position] for position in self.positions]
        listed = "; ".join(reasons[:_NAMED]) + ("; ..." if len(reasons) > _NAMED else "")
        return (
            f"{len(reasons)} of {self._size} images cannot be read; max_corrupt={self._max_corrupt:g} "
            f"allows {self.allowed}: {listed}. Repair or remove them, or increase max_corrupt"
        )


def check_labels(labels, classes):
    """Return the operation that stops the pipeline with an `UnusableDataError` if labels are out of range."""

    def stop(wrong):
        raise UnusableDataError(f"labels must be from 0 to {classes - 1}; the source contains {wrong.tolist()}")

    wrong = tf.boolean_mask(labels, (labels < 0) | (labels >= classes))
    return tf.cond(tf.size(wrong) == 0, tf.no_op, lambda: tf.group(tf.numpy_function(stop, [wrong], [])))
