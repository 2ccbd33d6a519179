"""Where labelled pictures come from: class folders and arrays, read lazily, one picture at a time."""

import collections.abc
import dataclasses
import os
import pathlib

import numpy as np
import tensorflow as tf

from keras_vit import checks

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """Labelled pictures in a fixed order.

    Attributes:
        dataset: unbatched `tf.data.Dataset` of `{"image": ..., "label": int32 scalar}`; the image is a scalar
            string (an encoded file) or uint8 (height, width, channels).
        class_names: one name per label.
        size: number of pictures.
        files: paths in the order of `dataset`, for messages; None where the pictures are no files.
        lookup: function from an int64 scalar tensor, a position in `dataset`, to its element. With it a
            shuffle or a split moves numbers instead of pictures; without it (None), `split` is not possible.
    """

    dataset: tf.data.Dataset
    class_names: tuple
    size: int
    files: tuple | None = None
    lookup: collections.abc.Callable | None = None

    def split(self, fraction, seed=0):
        """Draws a held-out part at random.

        Args:
            fraction: share of the pictures to hold out, in (0, 1); the number is rounded.
            seed: integer; the same seed holds out the same pictures.

        Returns:
            `(rest, held_out)`, two sources that share no picture and keep the order of this one.
        """
        held_out_size = round(self.size * checks.check_rate("fraction", fraction))
        if not 0 < held_out_size < self.size:
            raise ValueError(
                f"fraction must leave both parts at least one picture; got fraction={fraction} of {self.size}"
            )
        order = np.random.default_rng(checks.check_integer("seed", seed, minimum=0)).permutation(self.size)
        return self.take(np.sort(order[held_out_size:])), self.take(np.sort(order[:held_out_size]))

    def take(self, positions):
        """Returns the source of the pictures at `positions`, a sequence of integers, in that order."""
        if self.lookup is None:
            raise ValueError(
                "a source without lookup cannot be split: build two sources from two datasets instead"
            )
        files = None if self.files is None else tuple(self.files[position] for position in positions)
        with tf.device("CPU"):
            chosen = tf.constant(positions, tf.int64)
        return _from_lookup(lambda n: self.lookup(chosen[n]), self.class_names, len(positions), files)


def from_folder(path, extensions=EXTENSIONS):
    """Pictures in one sub-folder per class; the classes are the sub-folders sorted by name.

    Args:
        path: folder of class folders, such as `train/` of `train/cat/1.jpg` and `train/dog/2.png`. Pictures
            lie directly in their class folder; hidden files and folders are ignored.
        extensions: endings that are read, upper or lower case; files with another ending are ignored.

    Returns:
        An `ImageSource` whose files are read only when its dataset reaches them.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a file instead of a folder, no class folders, or a class folder without pictures.
    """
    folder = pathlib.Path(path)
    if not folder.exists():
        raise FileNotFoundError(f"path must be a folder of class folders; there is no {path}")
    if not folder.is_dir():
        raise ValueError(f"path must be a folder of class folders; {path} is a file")
    endings = _endings(extensions)
    classes = [entry for entry in _visible(folder) if entry.is_dir()]
    if not classes:
        raise ValueError(f"path must hold one sub-folder of pictures per class; there are none in {path}")
    files = [[file for file in _visible(entry) if file.name.lower().endswith(endings)] for entry in classes]
    empty = [entry.name for entry, found in zip(classes, files, strict=True) if not found]
    if empty:
        raise ValueError(
            f"every class folder must hold pictures ending in {', '.join(endings)}; "
            f"{len(empty)} of {len(classes)} in {path} hold none: {', '.join(empty[:5])}"
        )
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(found) for found in files])
    files = tuple(str(file) for found in files for file in found)
    return _from_files(files, labels, [entry.name for entry in classes])


def from_arrays(images, labels, class_names=None):
    """Pictures and labels that are in memory.

    Args:
        images: uint8 array (pictures, height, width) or (pictures, height, width, 1, 3 or 4 channels).
        labels: integer array (pictures,) or (pictures, 1), from 0.
        class_names: one name per class; None names them "0", "1" and so on up to the highest label.

    Returns:
        An `ImageSource`.

    Raises:
        ValueError: on another shape or type, on no pictures at all and on labels out of range.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8:
        raise ValueError(
            f"images must be uint8 on 0..255; got {images.dtype}: convert with "
            "np.round(images * 255).astype('uint8') if they are on [0, 1]"
        )
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or images.shape[-1] not in (1, 3, 4) or 0 in images.shape:
        raise ValueError(
            "images must have shape (pictures, height, width) or (pictures, height, width, channels) "
            f"with 1, 3 or 4 channels and no side of 0; got {images.shape}"
        )
    if labels.dtype.kind not in "iu" or labels.shape not in ((len(images),), (len(images), 1)):
        raise ValueError(
            f"labels must be {len(images)} integers, one per picture; "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    names = tuple(str(n) for n in range(int(labels.max()) + 1)) if class_names is None else tuple(class_names)
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(
            f"labels must be from 0 to {len(names) - 1}, as there are {len(names)} classes; "
            f"they range from {labels.min()} to {labels.max()}"
        )
    with tf.device("CPU"):
        images, labels = tf.constant(images), tf.constant(labels.reshape(-1), tf.int32)
    return _from_lookup(lambda n: {"image": images[n], "label": labels[n]}, names, len(images))


def _from_files(files, labels, class_names):
    with tf.device("CPU"):
        paths, labels = tf.constant([os.fsencode(file) for file in files]), tf.constant(labels)
    return _from_lookup(
        lambda n: {"image": tf.io.read_file(paths[n]), "label": labels[n]}, class_names, len(files), files
    )


def _from_lookup(lookup, class_names, size, files=None):
    dataset = tf.data.Dataset.range(size).map(lookup, num_parallel_calls=tf.data.AUTOTUNE)
    return ImageSource(dataset, tuple(class_names), size, files, lookup)


def _visible(folder):
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entries, key=lambda entry: entry.name)


def _endings(extensions):
    if isinstance(extensions, str) or not all(isinstance(e, str) and e.startswith(".") for e in extensions):
        raise ValueError(
            f"extensions must be a sequence of endings such as '.jpg'; got extensions={extensions!r}"
        )
    return tuple(ending.lower() for ending in extensions)
