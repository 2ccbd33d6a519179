"""Local image sources: a folder per class, arrays, an `.npz` file as published by Keras, and scikit-learn's digits."""

import collections
import dataclasses
import itertools
import logging
import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_vit import checks
from keras_vit.checkpoints.readers import open_npz
from keras_vit.data import images as readers
from keras_vit.data.sources import ImageSource, check_class_names, composed, from_memory, numbered_names
from keras_vit.typing import PathLike
from keras_vit.versions import import_optional

_LOG = logging.getLogger("keras_vit.data")
EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp")
PARTS = ("train", "test")
_MOST_COMPRESSED = 250  # zlib shortens black images by 1000, and the white shapes of dSprites by 115
_SMALL = 2**28  # bytes; images that take no more are read however small the file is
HELD_OUT = 5  # one image in five is held out


def from_directory(path: PathLike, extensions: Sequence[str] = EXTENSIONS) -> ImageSource:
    """Return the images of a folder with one sub-folder per class.

    The classes are the sub-folders sorted by name.

    Args:
        path: folder of class folders, such as `train/` with `train/cat/1.jpg` and `train/dog/2.png`. Images must be
            directly in their class folder; hidden files and folders are ignored. Other ignored files are counted and
            logged to `keras_vit.data`.
        extensions: file name endings to read, in upper or lower case; other files are ignored.

    Returns:
        An `ImageSource`, which reads a file only when its image is needed.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: on a file instead of a folder, no class folders, a class folder without images, two class folders
            whose names look alike, or a name that is not UTF-8.
    """
    folder, endings = _opened(path, extensions)
    top = _visible(folder)
    classes = sorted((entry for entry in top if entry.is_dir()), key=lambda entry: composed(entry.name))
    if not classes:
        raise ValueError(
            f"path must contain one folder of images per class; {path} has none (keras_vit.data.from_files reads "
            "images without classes)"
        )
    found: list[list[str]] = []
    ignored = [entry.path for entry in top if entry.name.lower().endswith(endings) and entry.is_file()]
    for entry in classes:
        found.append([])
        for file in _visible(entry):
            (found[-1] if file.name.lower().endswith(endings) and file.is_file() else ignored).append(file.path)
    empty = [entry.name for entry, inside in zip(classes, found, strict=True) if not inside]
    if empty:
        raise ValueError(
            f"every class folder must contain images ending in {', '.join(endings)}; "
            f"{len(empty)} of {len(classes)} in {path} contain none: {', '.join(empty[:5])}"
        )
    _check_names(entry.path for entry in classes)
    for one, other in itertools.pairwise(entry.name for entry in classes):
        if composed(one) == composed(other):
            raise ValueError(f"class folders must have different names; {ascii(one)} and {ascii(other)} look alike")
    _log_ignored(path, ignored)
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(inside) for inside in found])
    return read_when_needed(itertools.chain(*found), labels, [entry.name for entry in classes])


def from_files(path: PathLike, extensions: Sequence[str] = EXTENSIONS) -> ImageSource:
    """Return all images of a folder, at any depth, without classes.

    Args:
        path: folder with images; hidden files and folders are ignored. The order is that of the sorted paths.
        extensions: as in `from_directory`.

    Returns:
        An `ImageSource` whose images all have the label 0, of the class `"unlabelled"`; its names are the paths of
        the files, relative to the folder.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: on a file instead of a folder, no images, or a name that is not UTF-8.
    """
    folder, endings = _opened(path, extensions)
    visible = (p for p in folder.rglob("*") if not any(part[0] == "." for part in p.relative_to(folder).parts))
    paths = [path for path in visible if not path.is_dir()]
    found = [str(path) for path in paths if path.name.lower().endswith(endings) and path.is_file()]
    if not found:
        raise ValueError(f"path must contain images ending in {', '.join(endings)}; there are none in {path}")
    _log_ignored(path, {*map(str, paths)}.difference(found))
    source = read_when_needed(sorted(found), np.zeros(len(found), np.int32), ["unlabelled"])
    return dataclasses.replace(source, describe=lambda n: pathlib.Path(source.files[n]).relative_to(folder).as_posix())


def _opened(path, extensions):
    """Return the folder, and the endings in lower case."""
    folder = pathlib.Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"path must be a folder of images; {path} does not exist")
    if not folder.is_dir():
        raise ValueError(f"path must be a folder of images; {path} is a file")
    if isinstance(extensions, str) or not all(isinstance(e, str) and e.startswith(".") for e in extensions):
        raise ValueError(f"extensions must be a sequence of endings such as '.jpg'; got extensions={extensions!r}")
    return folder, tuple(ending.lower() for ending in extensions)


def _log_ignored(path, ignored):
    """Log how many files there are at these paths, by their endings."""
    files = (file for each in map(pathlib.Path, ignored) for file in (each, *each.rglob("*")))
    endings = collections.Counter(file.suffix.lower() for file in files if not file.is_dir() and file.name[0] != ".")
    if endings:
        counts = ", ".join(f"{count} {ending or 'without ending'}" for ending, count in endings.most_common())
        _LOG.warning("Files of %s that are not read, because of their ending or folder: %s", path, counts)


def _check_names(paths):
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:  # Python reads such a name with lone surrogates
            raise ValueError(f"names of files must be UTF-8; got {os.fsencode(path)!r}: rename it") from None


def read_when_needed(files, labels, class_names):
    """Return the source of images in files, which are read when they are needed."""
    files = tuple(files)
    _check_names(files)
    return from_memory([os.fsencode(file) for file in files], tf.io.read_file, labels, class_names, files)


def from_arrays(images: npt.ArrayLike, labels: npt.ArrayLike, class_names: Sequence[str] | None = None) -> ImageSource:
    """Return a source of images and labels that are in memory.

    Args:
        images: uint8 array (images, height, width) or (images, height, width, channels).
        labels: integer array (images,) or (images, 1), from 0.
        class_names: one name per class; None names them "0", "1" and so on up to the highest label.

    Returns:
        An `ImageSource`.

    Raises:
        ValueError: on another shape or dtype, on no images, and on labels out of range.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    _check_headers(images, labels)
    images = images[..., None] if images.ndim == 3 else images
    names = numbered_names(int(labels.max())) if class_names is None else check_class_names(class_names)
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(f"labels must be from 0 to {len(names) - 1}; they range from {labels.min()} to {labels.max()}")
    return from_memory(images, tf.identity, labels.reshape(-1).astype("int32"), names)


def _check_headers(images, labels):
    """Raise an error unless arrays, or the entries of a file, have the shapes and dtypes of images and labels."""
    if images.dtype != "uint8":
        raise ValueError(
            f"images must be uint8 on 0..255; got {images.dtype} (np.round(images * 255).astype('uint8') if on [0, 1])"
        )
    readers.check_shape("images", (*images.shape, 1) if len(images.shape) == 3 else images.shape, (4,))
    count, dtype = images.shape[0], getattr(labels.dtype, "name", labels.dtype)  # without the byte order
    if not dtype.startswith(("int", "uint")) or labels.shape not in ((count,), (count, 1)):
        raise ValueError(f"labels must be {count} integers, one per image; got {labels.dtype} of shape {labels.shape}")


def from_npz(path: PathLike, part: str = "train", class_names: Sequence[str] | None = None) -> ImageSource:
    """Return the images and labels of an `.npz` file.

    The file contains the arrays `x_train` and `y_train`, `x_test` and `y_test`, or only one of these pairs.

    Args:
        path: path of the file. Its arrays must be as for `from_arrays`; pickled objects raise an error.
        part: `"train"` or `"test"`.
        class_names: one name per class; None names them "0", "1" and so on up to the highest label of both parts.

    Returns:
        An `ImageSource`.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not a whole `.npz` file (see `keras_vit.load` for the checks), does not contain the arrays
            of `part`, or these are not images with labels.
    """
    checks.check_choice("part", part, PARTS)
    names, found = _open_arrays(path)
    if part not in found:
        raise ValueError(f"{path} must contain x_{part} and y_{part}; it contains {', '.join(names) or 'neither'}")
    for arrays in found.values():
        _check_headers(*arrays)
    size = sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for arrays in found.values() for x in arrays)
    most = max(_SMALL, os.path.getsize(path) * _MOST_COMPRESSED)
    if size > most:
        raise ValueError(f"{path} may hold {most:,} bytes of images and labels at its size; got {size:,} bytes")
    labels = {each: entries[1].read() for each, entries in found.items()}
    if class_names is None:
        class_names = numbered_names(max(int(array.max()) for array in labels.values()))
    return from_arrays(found[part][0].read(), labels[part], class_names)


def parts_of(path):
    """Return the members of `PARTS` whose arrays are in an `.npz` file."""
    return tuple(_open_arrays(path)[1])


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
    needed = "from_digits needs scikit-learn, which contains the images: pip install scikit-learn"
    digits = import_optional("sklearn.datasets", needed).load_digits()
    images = np.rint(digits.images * (255 / 16)).astype("uint8")[..., np.newaxis]  # from 0 ... 16, (1797, 8, 8, 1)
    labels = digits.target.astype("int32")
    # The file repeats the digits 0 to 9 in order, so the held-out fifth is drawn at random.
    # NumPy guarantees RandomState's stream, so the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(images))
    held_out, train = np.split(order, [len(order) // HELD_OUT])
    sources = [from_arrays(images[part], labels[part]) for part in (train, held_out)]
    return sources[0], sources[1]


def _open_arrays(path):
    """Return the names of the arrays of `PARTS` in an `.npz` file, and {part: (entry of images, entry of labels)}."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path}")
    keys = {part: (f"x_{part}", f"y_{part}") for part in PARTS}
    found = open_npz(path, {key for pair in keys.values() for key in pair})
    return list(found), {part: (found[x], found[y]) for part, (x, y) in keys.items() if x in found and y in found}


def _visible(folder):
    with os.scandir(folder) as entries:  # each entry stores its type, so is_file needs no further system call
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
