"""Type aliases shared by many signatures: paths, sizes and tensors."""

import os
from typing import Any, Protocol, TypeAlias

import numpy as np

# a file or folder
PathLike: TypeAlias = str | os.PathLike[str]

# (height, width), or one integer for both
Size: TypeAlias = int | tuple[int, int] | list[int]

# a config field that accepts a `Size` and stores a pair; a field has only one type, so Any stands for what it accepts
Pair: TypeAlias = tuple[int, int] | Any

# a backend tensor or a KerasTensor; they have no common base class
Tensor: TypeAlias = Any


class SupportsArray(Protocol):
    """Anything that `np.asarray` converts: NumPy arrays, and TensorFlow and JAX tensors."""

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray: ...
