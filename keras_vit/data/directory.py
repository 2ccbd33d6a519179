"""from_directory: images in one folder per class."""

import itertools
import os
import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import ImageSource, from_lookup
from keras_vit.typing import PathLike

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


def from_directory(path: PathLike, extensions: Sequence[str] = EXTENSIONS) -> ImageSource:
    """Return the images of a folder with one sub-folder per class.

    The classes are the sub-folders sorted by name.

    Args:
        path: folder of class folders, such as `train/` of `train/cat/1.jpg` and `train/dog/2.png`. Images must be
            directly in their class folder; hidden files and folders are ignored.
        extensions: file name endings to read, in upper or lower case; other files are ignored.

    Returns:
        An `ImageSource`; a file is read only when its dataset reaches it.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: on a file instead of a folder, no class folders, a class folder without images, or a name that is
            not UTF-8.
    """
    folder = pathlib.Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"path must be a folder of class folders; {path} does not exist")
    if not folder.is_dir():
        raise ValueError(f"path must be a folder of class folders; {path} is a file")
    if isinstance(extensions, str) or not all(isinstance(e, str) and e.startswith(".") for e in extensions):
        raise ValueError(f"extensions must be a sequence of endings such as '.jpg'; got extensions={extensions!r}")
    endings = tuple(ending.lower() for ending in extensions)
    classes = [entry for entry in _visible(folder) if entry.is_dir()]
    if not classes:
        raise ValueError(f"path must contain one sub-folder of images per class; there are none in {path}")
    found = [
        [file.path for file in _visible(entry) if file.name.lower().endswith(endings) and file.is_file()]
        for entry in classes
    ]
    empty = [entry.name for entry, inside in zip(classes, found, strict=True) if not inside]
    if empty:
        raise ValueError(
            f"every class folder must contain images ending in {', '.join(endings)}; "
            f"{len(empty)} of {len(classes)} in {path} contain none: {', '.join(empty[:5])}"
        )
    files = tuple(itertools.chain(*found))
    for name in itertools.chain((entry.path for entry in classes), files):
        try:
            name.encode()
        except UnicodeEncodeError:  # Python reads such a name with lone surrogates
            raise ValueError(
                f"names of folders and files must be UTF-8; got {os.fsencode(name)!r}: rename it"
            ) from None
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(inside) for inside in found])
    with tf.device("CPU"):
        paths, numbers = tf.constant([os.fsencode(file) for file in files]), tf.constant(labels)

    def lookup(n):
        return {"image": tf.io.read_file(paths[n]), "label": numbers[n]}

    return from_lookup(lookup, [entry.name for entry in classes], len(files), files, labels=labels)


def _visible(folder):
    with os.scandir(folder) as entries:  # its entries know their type, so is_file needs no further system call
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
