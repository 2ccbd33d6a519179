"""What a pipeline does about images that cannot be read: skip, count, name, and stop beyond a share of them."""

import logging
import numbers
import re
import threading

import tensorflow as tf

from keras_vit.data import encoded

_LOG = logging.getLogger("keras_vit.data")
_NAMED = 5  # images that the last message lists


class UnusableDataError(ValueError):
    """The images or labels of a source cannot be trained or evaluated on; the message says why."""


def data_error(error: BaseException) -> UnusableDataError | None:
    """Finds the clear sentence in what TensorFlow raises when a pipeline of ours stops.

    Args:
        error: exception that came out of `model.fit`, `model.evaluate` or an iterator, a `tf.errors.OpError`.

    Returns:
        An `UnusableDataError`, which is a `ValueError`, with the sentence alone; None where `error` is not ours.
    """
    found = re.search(rf"{UnusableDataError.__name__}: (.*)", str(error))
    return UnusableDataError(found[1].strip()) if isinstance(error, tf.errors.OpError) and found else None


class Unreadable:
    """The images of one pipeline that could not be read so far.

    Args:
        source: the `ImageSource` that they come from.
        channels: of the model input, for the reason in the messages.
        max_corrupt: largest share of the images of the source, in [0, 1], that may be unreadable.

    Attributes:
        allowed: the same as a number of images.
    """

    def __init__(self, source, channels, max_corrupt):
        is_number = isinstance(max_corrupt, numbers.Real) and not isinstance(max_corrupt, bool)
        if not is_number or not 0.0 <= max_corrupt <= 1.0:
            raise ValueError(f"max_corrupt must be a number in [0, 1]; got max_corrupt={max_corrupt!r}")
        # Not the source: TensorFlow keeps whatever a numpy_function refers to until the process ends.
        self._name_of = source.describe or (source.files.__getitem__ if source.files else "image {}".format)
        self._size, self._channels, self._max_corrupt = source.size, channels, float(max_corrupt)
        self.allowed = int(self._max_corrupt * self._size)
        self._found, self._lock = {}, threading.Lock()

    @property
    def positions(self):
        """Positions in the source, ascending."""
        return sorted(self._found)

    def report(self, positions, opened, contents):
        """Logs images that are new here, and raises once there are too many.

        Args:
            positions: int64 array, where in the source the images stand.
            opened: int64 array, those of `positions` whose file or record could be read.
            contents: array of bytes, what stands in these.
        """
        opened = dict(zip(opened.tolist(), contents, strict=True))
        with self._lock:
            for position in positions.tolist():
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
            encoded.decode(name, contents, self._channels)
        except ValueError as error:
            return " ".join(str(error).split())  # one line, which data_error can find the end of
        return f"{name} was decoded but could not be cropped or augmented"

    def _summary(self):
        reasons = [self._found[position] for position in self.positions]
        listed = "; ".join(reasons[:_NAMED]) + ("; ..." if len(reasons) > _NAMED else "")
        return (
            f"{len(reasons)} of {self._size} images cannot be read, which is more than "
            f"max_corrupt={self._max_corrupt:g} allows: {listed}. Mend or remove these, or raise max_corrupt"
        )


def stop(message, values):
    """Operation that ends the pipeline with an `UnusableDataError`: `message` with `values` (a tensor) put in."""

    def end(values):
        raise UnusableDataError(message.format(values.tolist()))

    return tf.group(tf.numpy_function(end, [values], []))
