"""Names for the types that many signatures share: paths, sizes and tensors."""

import os
from typing import Any, Protocol, TypeAlias

import numpy as np

# a file or folder
PathLike: TypeAlias = str | os.PathLike[str]

# (height, width), or one integer for both
Size: TypeAlias = int | tuple[int, int] | list[int]

# a config's field that takes a `Size` and keeps a pair: checkers know one type for both, so Any stands for the rest
Pair: TypeAlias = tuple[int, int] | Any

# of the backend, or Keras's symbol of one: they have no class in common
Tensor: TypeAlias = Any


class SupportsArray(Protocol):
    """What `np.asarray` takes for an array: NumPy's own, and tensors of TensorFlow and JAX."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray: ...
