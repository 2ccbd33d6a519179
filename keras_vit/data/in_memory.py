"""Sources of images in memory: arrays, an `.npz` file of arrays such as those that Keras publishes, and digits."""

import contextlib
import os
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_vit import checks
from keras_vit.data import arrays
from keras_vit.data.sources import ImageSource, check_class_names, from_lookup
from keras_vit.typing import PathLike

PARTS = ("train", "test")
_DAMAGE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)
HELD_OUT = 5  # one image in five is held out


def from_arrays(images: npt.ArrayLike, labels: npt.ArrayLike, class_names: Sequence[str] | None = None) -> ImageSource:
    """Return a source of images and labels that are in memory.

    Args:
        images: uint8 array (images, height, width) or (images, height, width, 1, 3 or 4 channels).
        labels: integer array (images,) or (images, 1), from 0.
        class_names: one name per class; None names them "0", "1" and so on up to the highest label.

    Returns:
        An `ImageSource`.

    Raises:
        ValueError: on another shape or dtype, on no images, and on labels out of range.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8:
        raise ValueError(
            f"images must be uint8 on 0..255; got {images.dtype}: convert with "
            "np.round(images * 255).astype('uint8') if they are on [0, 1]"
        )
    images = images[..., None] if images.ndim == 3 else images
    arrays.check_shape("images", images.shape, (4,))
    if labels.dtype.kind not in "iu" or labels.shape not in ((len(images),), (len(images), 1)):
        raise ValueError(
            f"labels must be {len(images)} integers, one per image; got {labels.dtype} of shape {labels.shape}"
        )
    names = [str(n) for n in range(int(labels.max()) + 1)] if class_names is None else check_class_names(class_names)
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(
            f"labels must be from 0 to {len(names) - 1}, as there are {len(names)} classes; "
            f"they range from {labels.min()} to {labels.max()}"
        )
    labels = labels.reshape(-1).astype("int32")
    with tf.device("CPU"):
        pixels, numbers = tf.constant(images), tf.constant(labels)
    return from_lookup(lambda n: {"image": pixels[n], "label": numbers[n]}, names, len(images), labels=labels)


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


def from_digits() -> tuple[ImageSource, ImageSource]:
    """Return (train, held-out) sources of scikit-learn's digits.

    The data set has 1797 grey images of handwritten digits, 8 x 8 pixels, in ten classes (E. Alpaydin and C. Kaynak,
    Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998). A fifth of them, 359 images, is
    held out; the split is always the same.

    Returns:
        A pair of `ImageSource`: uint8 images (8, 8, 1), labels 0 to 9, class names `"0"` to `"9"`.

    Raises:
        ImportError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "from_digits needs scikit-learn, which contains the images: pip install scikit-learn"
        ) from error
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype("uint8")[..., np.newaxis]  # from 0 ... 16, (1797, 8, 8, 1)
    labels = digits.target.astype("int32")
    # The file repeats the digits 0 to 9 in order, so the held-out fifth is drawn at random.
    # NumPy guarantees RandomState's stream, so the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(images))
    held_out, train = np.split(order, [len(order) // HELD_OUT])
    names = [str(name) for name in digits.target_names]
    sources = [from_arrays(images[part], labels[part], class_names=names) for part in (train, held_out)]
    return sources[0], sources[1]


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
