"""`from_npz`: training or test images in an `.npz` file of arrays, such as those that Keras publishes."""

import contextlib
import os
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from keras_vit import checks
from keras_vit.data.sources import ImageSource, check_class_names, from_arrays
from keras_vit.typing import PathLike

PARTS = ("train", "test")
_DAMAGE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)


def from_npz(path: PathLike, part: str = "train", class_names: Sequence[str] | None = None) -> ImageSource:
    """Return the images and labels of an `.npz` file.

    The file contains the arrays `x_train` and `y_train`, `x_test` and `y_test`, or only one of these pairs.

    Args:
        path: of the file. The arrays must be of a kind that `from_arrays` accepts; pickled objects raise an error.
        part: `"train"` or `"test"`.
        class_names: one name per class; None names them "0", "1" and so on up to the highest label of both parts.

    Returns:
        An `ImageSource`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not an `.npz` file, lacks the arrays of the part, or they are not images with labels.
    """
    checks.check_choice("part", part, PARTS)
    with _open(path) as file:
        missing = [key for key in _keys(part) if key not in file.files]
        if missing:
            raise ValueError(
                f"{path} must contain {' and '.join(_keys(part))}; it contains {', '.join(file.files) or 'none'}"
            )
        images, labels = (_read(path, file, key) for key in _keys(part))
        every = [_read(path, file, key) for key in map("y_{}".format, PARTS) if key in file.files]
    if class_names is None and all(array.dtype.kind in "iu" and array.size for array in every):
        class_names = [str(n) for n in range(max(int(array.max()) for array in every) + 1)]
    return from_arrays(images, labels, class_names if class_names is None else check_class_names(class_names))


def parts_of(path):
    """Return the members of `PARTS` whose arrays are in an `.npz` file."""
    with _open(path) as file:
        return tuple(part for part in PARTS if all(key in file.files for key in _keys(part)))


def _keys(part):
    return f"x_{part}", f"y_{part}"


@contextlib.contextmanager
def _open(path):
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    with open(path, "rb") as contents:  # np.load does not close a damaged file
        try:
            file = np.load(contents, allow_pickle=False)
        except _DAMAGE as error:
            raise ValueError(f"{path} must be a complete .npz file; {error}") from error
        if not hasattr(file, "files"):
            raise ValueError(f"{path} must be an .npz file of several arrays; it is an .npy file of one array")
        yield file


def _read(path, file, key):
    try:
        return file[key]
    except _DAMAGE as error:
        raise ValueError(f"{key} of {path} must be a complete array of numbers; {error}") from error
