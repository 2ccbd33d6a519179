"""ImageSource: labelled images in a fixed order, read one at a time."""

import contextlib
import dataclasses
import hashlib
import logging
import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.typing import PathLike, Tensor

_LOG = logging.getLogger("keras_vit.data")
MAX_NUMBERED = 2**20  # classes without names
SAMPLED = 256  # images that `fingerprint` reads
_READ_TWICE = 8  # images read a second time, to detect random contents


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """Hold labelled images in a fixed order.

    Attributes:
        dataset: unbatched `tf.data.Dataset` of `{"image": ..., "label": int32 scalar}`; the image is a scalar
            string (an encoded file) or uint8 (height, width, channels).
        class_names: one name per label; composed characters (Unicode NFC) replace decomposed ones, which look the same.
        size: number of images.
        files: paths in the order of `dataset`, for messages; None if the images are not files.
        lookup: function from an int64 scalar tensor, a position in `dataset`, to its element. With it, shuffling and
            splitting move positions instead of images. Without it (None) the source is a stream: it is shuffled in a
            buffer and cannot be split.
        describe: function from a position to the name of that image in messages; None uses its file or its number.
        labels: integer array (images,) of the labels in the order of `dataset`, if they are known without reading
            images (folders, arrays and cached sources); otherwise None.
    """

    dataset: tf.data.Dataset
    class_names: tuple[str, ...]
    size: int
    files: tuple[str, ...] | None = None
    lookup: Callable[[Tensor], dict[str, Tensor]] | None = None
    describe: Callable[[int], str] | None = None
    labels: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(composed(name) for name in self.class_names))

    def name_of(self, position: int) -> str:
        """Return the name of an image in messages.

        The name is a path, a record or a number from 0.

        Args:
            position: position of the image in `dataset`, from 0.
        """
        if self.describe is not None:
            return self.describe(position)
        return f"image {position}" if self.files is None else self.files[position]

    def split(self, fraction: float, seed: int = 0) -> tuple["ImageSource", "ImageSource"]:
        """Split off a random held-out part, stratified by class if `labels` are known.

        The only image of a class is held out last. If classes have no image in the rest, their number is logged to
        `keras_vit.data`.

        Args:
            fraction: share of the images to hold out, in (0, 1); the number is rounded.
            seed: integer; the same seed holds out the same images.

        Returns:
            `(rest, held_out)`, two disjoint sources that keep the order of this one.

        Raises:
            ValueError: on a fraction that leaves a part without images, an invalid seed, or a source without lookup.
        """
        held_out_size, order = drawn_order(self.size, fraction, seed)
        if self.labels is not None:
            order = order[_by_shares(self.labels[order])]
            lost = np.setdiff1d(self.labels, self.labels[order[held_out_size:]])
            if len(lost):
                _LOG.warning("split(%s) holds out every image of %d classes: training lacks them", fraction, len(lost))
        return self.take(np.sort(order[held_out_size:])), self.take(np.sort(order[:held_out_size]))

    def take(self, positions: Sequence[int] | np.ndarray) -> "ImageSource":
        """Return a source of some of the images, in the given order.

        Args:
            positions: integers from 0 to size - 1.

        Raises:
            ValueError: on a source without lookup, or a position out of range.
        """
        if self.lookup is None:
            raise ValueError("a source without lookup cannot be split: build two sources, or call cached() first")
        positions = check_positions(positions, self.size)
        files = None if self.files is None else tuple(self.files[position] for position in positions)
        describe = _composed(self.describe, positions)
        with tf.device("CPU"):
            chosen = tf.constant(positions)
        labels = None if self.labels is None else self.labels[positions]
        return from_lookup(lambda n: self.lookup(chosen[n]), self.class_names, len(positions), files, describe, labels)

    def sample(self, count: int, seed: int = 0) -> "ImageSource":
        """Return a source of at most `count` images, in the order of this one.

        They are drawn at random; a source without lookup gives its first ones.

        Args:
            count: number of images, at least 1.
            seed: integer, 0 or above; the same seed draws the same images.

        Raises:
            ValueError: if a number is out of range.
        """
        checks.check_integer("count", count)
        checks.check_integer("seed", seed, minimum=0)
        if self.lookup is None:
            return dataclasses.replace(self, dataset=self.dataset.take(count), size=min(self.size, count))
        return self.take(np.sort(np.random.default_rng(seed).permutation(self.size)[:count]))

    def map_images(self, function: Callable[[Tensor], Tensor]) -> "ImageSource":
        """Return a source that applies `function` to each image when it is read.

        Args:
            function: TensorFlow function from an image of `dataset` to another image, encoded or pixels.
        """

        def changed(element):
            return {**element, "image": function(element["image"])}

        dataset = self.dataset.map(changed, num_parallel_calls=tf.data.AUTOTUNE)
        inner = self.lookup
        lookup = None if inner is None else lambda n: changed(inner(n))
        return dataclasses.replace(self, dataset=dataset, lookup=lookup)

    def cached(self, max_bytes: int = 2**30) -> "ImageSource":
        """Return a source that keeps every image in memory.

        Every image is read once: the bytes of a file, the pixels of an array.

        Args:
            max_bytes: maximum memory for the images, in bytes.

        Returns:
            An `ImageSource` with the same images and names. It has lookup even if this one is a stream. An unreadable
            image becomes an empty file, which the pipelines skip, count and log.

        Raises:
            ValueError: if the images need more than `max_bytes`.
        """
        checks.check_integer("max_bytes", max_bytes)
        spec, contents, labels, total = self.dataset.element_spec["image"], [], [], 0
        packed = _each(self).map(lambda element: {**element, "image": pack(element["image"])})
        for element in packed.as_numpy_iterator():
            contents.append(element["image"])
            labels.append(element["label"])
            total += len(contents[-1])
            if total > max_bytes:
                raise ValueError(
                    f"max_bytes must hold {self.size:,} images; got {max_bytes:,}, and {len(contents):,} take {total:,}"
                )
        if len(contents) != self.size:
            raise ValueError(f"the source must contain {self.size} images, its size; it contains {len(contents)}")
        known = np.asarray(labels, "int32").reshape(self.size)
        held = tf.constant(contents, tf.string, shape=(self.size,))
        return from_memory(held, lambda image: unpack(image, spec), known, self.class_names, self.files, self.describe)

    def fingerprint(self) -> dict[str, Any]:
        """Return values that identify the images.

        A folder that was moved keeps its fingerprint.

        The values are computed from the class names, the labels, the last folder and the file name of every path, and
        the contents of 256 evenly spaced images (of the first 256 without lookup). If `labels` is None, only the labels
        of these images are used.

        Returns:
            JSON values by name: the numbers of `images` and `classes`, and digests of `class_names`, `files`, `labels`
            and `contents`. `files` is None if the files are unknown. `contents` is None if reading an image twice gives
            different results, as with a random function in `map_images`.
        """
        contents, sampled_labels = self._sampled_digests(SAMPLED)
        again, _ = self._sampled_digests(_READ_TWICE)
        labels = sampled_labels if self.labels is None else self.labels
        names = None if self.files is None else ("/".join(f.split(os.sep)[-2:]) for f in self.files)
        return {
            "images": self.size,
            "classes": len(self.class_names),
            "class_names": digest("\n".join(self.class_names).encode()),
            "files": None if names is None else digest("\n".join(names).encode("utf-8", "surrogateescape")),
            "labels": digest(np.asarray(labels, np.int64).tobytes()),
            "contents": digest("".join(contents).encode()) if again == contents[: len(again)] else None,
        }

    def _sampled_digests(self, most):
        """Return (digests, labels) of the first `most` readable images that `fingerprint` reads."""
        if self.lookup is None:
            dataset = self.dataset.take(most)
        else:
            places = np.linspace(0, self.size - 1, min(self.size, SAMPLED)).astype(np.int64)[:most]
            dataset = tf.data.Dataset.from_tensor_slices(places).map(self.lookup).ignore_errors()
        options = tf.data.Options()
        options.autotune.enabled = False  # as in the pipelines, so that iterators end at once
        contents, labels = [], []
        with contextlib.suppress(tf.errors.OpError):  # a stream ends at its first error
            for element in dataset.with_options(options).as_numpy_iterator():
                image = element["image"]
                contents.append(digest(image) if self.is_encoded else f"{image.shape}{digest(image.tobytes())}")
                labels.append(element["label"])
        return contents, labels

    @property
    def is_encoded(self) -> bool:
        """Return whether the images are encoded files rather than pixels."""
        return self.dataset.element_spec["image"].dtype == tf.string


# labelled data to train or evaluate on: a folder of class folders, a source, or batches of (inputs, integer labels)
LabelledData: TypeAlias = PathLike | ImageSource | tf.data.Dataset


def from_lookup(lookup, class_names, size, files=None, describe=None, labels=None):
    """Return an `ImageSource` with this `lookup`; the arguments are attributes of the source."""
    dataset = tf.data.Dataset.range(size).map(lookup, num_parallel_calls=tf.data.AUTOTUNE)
    return ImageSource(dataset, tuple(class_names), size, files, lookup, describe, labels)


def from_memory(values, read, labels, class_names, files=None, describe=None):
    """Return an `ImageSource` whose images `read` makes from the elements of `values`; `labels` are int32 (images,)."""
    with tf.device("CPU"):
        held, numbers = tf.constant(values), tf.constant(labels)

    @tf.autograph.experimental.do_not_convert
    def lookup(n):
        return {"image": read(held[n]), "label": numbers[n]}

    return from_lookup(lookup, class_names, len(labels), files, describe, labels)


def drawn_order(size, fraction, seed):
    """Return how many of `size` images are held out, and a random order of all positions."""
    held_out_size = round(size * checks.check_rate("fraction", fraction))
    if not 0 < held_out_size < size:
        raise ValueError(f"fraction must leave each part an image; got fraction={fraction} of {size} images")
    return held_out_size, np.random.default_rng(checks.check_integer("seed", seed, minimum=0)).permutation(size)


def check_positions(positions, size):
    """Return positions of images as an int64 array; one that is not from 0 to `size` - 1 raises an error."""
    positions = np.asarray(positions, np.int64)
    outside = positions[(positions < 0) | (positions >= size)]
    if len(outside):
        raise ValueError(f"positions must be from 0 to {size - 1}; got {outside[0]}")
    return positions


def pack(image):
    """Return an image as a scalar string, so that images of several sizes can be stacked; files stay unchanged."""
    return image if image.dtype == tf.string else tf.io.serialize_tensor(image)


def unpack(string, spec):
    """Return the image from which `pack` made a string; `spec` is the `tf.TensorSpec` of the image."""
    return tf.ensure_shape(string if spec.dtype == tf.string else tf.io.parse_tensor(string, spec.dtype), spec.shape)


def composed(name):
    """Return a name in the form NFC of Unicode; some file systems store another form, which looks the same."""
    return unicodedata.normalize("NFC", name)


def numbered_names(highest):
    """Return the names "0", "1" and so on up to the `highest` label.

    Raises:
        ValueError: if there would be more than a million names, as after one damaged label.
    """
    if highest >= MAX_NUMBERED:
        raise ValueError(
            f"labels without class_names must be below {MAX_NUMBERED:,}; the highest is {highest} (pass class_names "
            "or an ImageSource, which has them)"
        )
    return tuple(map(str, range(highest + 1)))


def as_label(label):
    """Return an integer tensor as int32; a number outside int32 becomes the nearest one, which is no class."""
    return tf.cast(tf.clip_by_value(tf.cast(label, tf.int64), tf.int32.min, tf.int32.max), tf.int32)


def check_class_names(names):
    """Return a sequence of names as a tuple; a single string raises an error."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"class_names must be a sequence of strings, one per class; got class_names={names!r}")
    return tuple(names)


def digest(contents):
    """Return a short digest of bytes, as text."""
    return hashlib.blake2b(contents, digest_size=8).hexdigest()


def _by_shares(labels):
    """Return an order in which the first n images contain each class in proportion (rounded), for any n.

    It uses Sainte-Lague's method: image r of a class of n images, from 0, is sorted at (r + 1/2) / n. The last image of
    each class comes after all others.
    """
    _, counts = np.unique(labels, return_counts=True)
    of_class = np.argsort(labels, kind="stable")
    ranks = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    of_classes = np.repeat(counts, counts)
    return of_class[np.lexsort((of_class, (ranks + 0.5) / of_classes, ranks == of_classes - 1))]


def _composed(describe, positions):
    # A function outside the class, so that it does not keep the source in memory (see Unreadable).
    return None if describe is None else lambda n: describe(int(positions[n]))


def _each(source):
    """Return the dataset of every element; an encoded image whose lookup fails becomes b""."""
    if source.lookup is None or not source.is_encoded:
        return source.dataset

    def read(n):
        lost = tf.data.Dataset.from_tensors({"image": tf.constant(b""), "label": tf.constant(0)})
        found = tf.data.Dataset.from_tensors(n).map(source.lookup).ignore_errors()
        return found.concatenate(lost).take(1)

    return tf.data.Dataset.range(source.size).interleave(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
