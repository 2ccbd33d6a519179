"""Operation: one augmentation for a tf.data pipeline."""

import collections.abc
import dataclasses


@dataclasses.dataclass(frozen=True)
class Operation:
    """One augmentation.

    Args:
        text: the string that it was parsed from.
        kind: `crop`, `image` or `batch`, the way it is called. A seed is an integer tensor (2,).

            - `crop`: `(contents_or_pixels, size, channels, seed)` to float32 (*size, channels) on [0, 255].
              The first argument is an encoded file (scalar string) or pixels (height, width, 1, 3 or 4 channels).
            - `image`: `(image, seed)`, float32 (height, width, channels) on [0, 255] to the same.
            - `batch`: `(images, seed)`, float32 (batch, height, width, channels) on [0, 255] to the same.
        function: the function that is called.
    """

    text: str
    kind: str
    function: collections.abc.Callable

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)
