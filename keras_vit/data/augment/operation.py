"""Operation: one augmentation, ready to be called inside a tf.data pipeline."""

import collections.abc
import dataclasses


@dataclasses.dataclass(frozen=True)
class Operation:
    """One augmentation.

    Args:
        text: what it was parsed from.
        kind: `crop`, `image` or `batch`, which says how it is called. A seed is an integer tensor (2,).

            - `crop`: `(contents_or_pixels, size, channels, seed)` to float32 (*size, channels) on [0, 255].
              It takes an encoded file (scalar string) or pixels (height, width, 1, 3 or 4 channels).
            - `image`: `(image, seed)`, float32 (height, width, channels) on [0, 255] to the same.
            - `batch`: `(images, seed)`, float32 (batch, height, width, channels) on [0, 255] to the same.
        function: what is called.
    """

    text: str
    kind: str
    function: collections.abc.Callable

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)
