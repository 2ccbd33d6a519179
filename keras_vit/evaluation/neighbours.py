"""Nearest neighbours of frozen features: `embed` and `nearest` for retrieval, and the accuracy of `knn`."""

import dataclasses
import typing
from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks, files
from keras_vit.config import Preprocessing
from keras_vit.data import from_files
from keras_vit.data.sources import ImageSource, LabelledData
from keras_vit.evaluation.labelled import check_labels, match_labels, open_labelled
from keras_vit.evaluation.linear_probe import FrozenFeatures
from keras_vit.files import aligned
from keras_vit.typing import PathLike

_AT_ONCE = 2**25  # similarities in memory, 128 MiB
_ROWS = 2**14  # features that are float64 at a time
_EXPONENT = 600.0  # limit of the largest exponent of a vote; exp of it is far from infinity and from 0


@dataclasses.dataclass(frozen=True, eq=False)
class Embeddings:
    """Hold the result of `embed`.

    Attributes:
        features: float32 (images, dim), not normalised.
        files: path of each image, relative to the folder; of a source, the names of its images.
        layer: name of the layer that returned the features.
    """

    features: np.ndarray
    files: tuple[str, ...]
    layer: str

    def save(self, path: PathLike) -> None:
        """Write an `.npz` file with the arrays `features` and `files`, atomically.

        Args:
            path: path of the file, which ends in `.npz`; its folder must exist.

        Raises:
            ValueError: on another ending.
        """
        if not str(path).endswith(".npz"):
            raise ValueError(f"path must end in .npz; got {str(path)!r}")
        files.replace_file(path, lambda file: np.savez(file, features=self.features, files=np.array(self.files)))


class Neighbours(typing.NamedTuple):
    """Hold the images nearest to each query, the nearest first.

    Attributes:
        indices: (queries, count), rows of the features.
        similarities: float32 (queries, count), cosines in [-1, 1].
    """

    indices: np.ndarray
    similarities: np.ndarray


@dataclasses.dataclass(frozen=True)
class KNN:
    """Hold the result of `knn`; `str()` of it is a table.

    Attributes:
        top1: {k: share of the test images whose class has the highest score}.
        top5: {k: share whose class is among the min(5, k) classes with the highest scores}.
        class_names: names of the classes.
        count: number of test images.
        layer: name of the layer that returned the features.
        temperature: T of the votes.
    """

    top1: dict[int, float]
    top5: dict[int, float]
    class_names: tuple[str, ...]
    count: int
    layer: str
    temperature: float

    def __str__(self):
        rows = [("k", "top-1 %", "top-5 %")]
        rows += [(k, f"{100 * self.top1[k]:.2f}", f"{100 * self.top5[k]:.2f}") for k in self.top1]
        about = f"{self.count} images of {len(self.class_names)} classes, features of {self.layer}"
        return f"{aligned(rows)}\n{about}, T={self.temperature:g}"


def embed(
    model: keras.Model,
    images: PathLike | ImageSource,
    layer: str | None = None,
    batch_size: int = 32,
    preprocessing: Preprocessing | None = None,
    verbose: bool = False,
) -> Embeddings:
    """Return a feature vector for each image.

    Args:
        model: as in `few_shot`.
        images: a folder, whose images are found at any depth, or an `ImageSource`. Labels are ignored.
        layer, batch_size, preprocessing, verbose: as in `few_shot`.

    Raises:
        ValueError: if an image cannot be read (the message names it), there are none, or the features are not finite.
    """
    checks.check_flag("verbose", verbose)
    source = images if isinstance(images, ImageSource) else from_files(images)
    frozen = FrozenFeatures(model, layer)
    [opened] = open_labelled({"images": source}, frozen.model, preprocessing, batch_size)
    features, _ = frozen.read(opened, verbose=verbose)
    return Embeddings(features, tuple(map(source.name_of, range(len(features)))), frozen.layer)


def nearest(features: npt.ArrayLike, query: npt.ArrayLike, count: int = 5) -> Neighbours:
    """Return the images most similar to each query, by their cosine.

    Of images with equal cosines, such as copies of an image, the first comes first. Vectors may have any length; the
    cosine with a vector of zeros is 0.

    Args:
        features: (images, dim), such as the array `features` of `keras-vit embed`.
        query: (queries, dim), or (dim,) for one query.
        count: neighbours per query, at most the number of images.

    Returns:
        `Neighbours`; for one query the arrays have one row.

    Raises:
        ValueError: on other shapes, values that are not finite, or more neighbours than images.
    """
    stored, wanted = _unit("features", features), _unit("query", np.atleast_2d(query))
    if stored.shape[1] != wanted.shape[1]:
        raise ValueError(f"query must have the {stored.shape[1]} values of features; got {wanted.shape[1]}")
    if checks.check_integer("count", count) > len(stored):
        raise ValueError(f"count must be at most the number of images, {len(stored)}; got {count}")
    step = max(_AT_ONCE // len(stored), 1)
    parts = [_nearest(stored, wanted[start : start + step], count) for start in range(0, len(wanted), step)]
    return Neighbours(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def knn_scores(neighbours: Neighbours, labels: npt.ArrayLike, classes: int, temperature: float = 0.07) -> np.ndarray:
    """Return the score of each class in the vote of the neighbours.

    It is the sum of exp(cosine / T) over the neighbours of that class, the weighted vote of DINO (arXiv 2104.14294,
    appendix F.1) and DINOv2. If the largest cosine / T of a query is not in [-600, 600], all its scores are multiplied
    by the factor that moves it to this limit, because they would be infinite or 0.

    Args:
        neighbours: those of each query, from `nearest`.
        labels: integers (images,), the class of each image.
        classes: number of classes.
        temperature: T, above 0.

    Returns:
        float64 (queries, classes).

    Raises:
        ValueError: on labels that are not from 0 to classes - 1, or a temperature that is not above 0.
    """
    checks.check_positive("temperature", temperature)
    votes = check_labels("labels", labels, checks.check_integer("classes", classes))[neighbours.indices]
    scores = np.zeros((len(votes), classes))
    similarities = neighbours.similarities.astype("float64")
    largest = similarities.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        exponents = (similarities - largest) / temperature + np.clip(largest / temperature, -_EXPONENT, _EXPONENT)
    np.add.at(scores, (np.arange(len(votes))[:, None], votes), np.exp(exponents))
    return scores


def knn(
    model: keras.Model,
    train: LabelledData,
    test: LabelledData,
    k: int | Sequence[int] = 20,
    temperature: float = 0.07,
    layer: str | None = None,
    batch_size: int = 32,
    preprocessing: Preprocessing | None = None,
    verbose: bool = False,
) -> KNN:
    """Measure the accuracy of k-nearest-neighbour votes on frozen features.

    DINO and DINOv2 report this accuracy. Features are L2-normalised; see `knn_scores` for the vote. Nothing is trained.

    Args:
        model, train, test: as in `few_shot`.
        k: number of neighbours, or several distinct ones; at most the number of training images.
        temperature: T of the vote, above 0.
        layer: as in `few_shot`. The default is the input of the head; for a model that pools its class token, this is
            the normalised class token, as in DINO.
        batch_size, preprocessing, verbose: as in `few_shot`.

    Returns:
        A `KNN`.

    Raises:
        ValueError: if `k` exceeds the training images, the classes of train and test differ, an image cannot be read,
            or the features are not finite.
    """
    checks.check_flag("verbose", verbose)
    checks.check_positive("temperature", temperature)
    counts = checks.check_distinct("k", k)
    frozen = FrozenFeatures(model, layer)
    opened = open_labelled({"train": train, "test": test}, frozen.model, preprocessing, batch_size)
    class_names, places = match_labels(*opened)
    (x, labels), (x_test, y) = (frozen.read(one, verbose=verbose) for one in opened)
    if max(counts) > len(x):
        raise ValueError(f"k must be at most the number of training images, {len(x)}; got {max(counts)}")
    neighbours = nearest(x, x_test, max(counts))
    y = places[check_labels("test", y, len(places))]
    top1, top5 = {}, {}
    for count in counts:
        closest = Neighbours(*(array[:, :count] for array in neighbours))
        order = np.argsort(-knn_scores(closest, labels, len(class_names), temperature), kind="stable")
        hits = order == y[:, None]
        top1[count], top5[count] = float(hits[:, 0].mean()), float(hits[:, : min(5, count)].any(1).mean())
    return KNN(top1, top5, tuple(class_names), len(y), frozen.layer, temperature)


def _nearest(features, query, count):
    query, similarities = query.astype("float64"), np.empty((len(query), len(features)), "float32")
    for start in range(0, len(features), _ROWS):
        # A float32 product of equal rows may differ in its last bit; in float64, the difference is rounded away.
        rows = features[start : start + _ROWS].astype("float64")
        similarities[:, start : start + _ROWS] = query @ rows.T
    limits = -np.partition(-similarities, count - 1, axis=1)[:, count - 1]
    indices = np.empty((len(query), count), np.int64)
    for row, limit, found in zip(similarities, limits, indices, strict=True):
        chosen = np.flatnonzero(row >= limit)  # all that equal the last one, so that the first of them is kept
        found[:] = chosen[np.argsort(-row[chosen], kind="stable")[:count]]
    return indices, np.take_along_axis(similarities, indices, axis=1)


def _unit(name, vectors):
    vectors = np.asarray(vectors, "float64")
    if vectors.ndim != 2 or not vectors.size or not np.isfinite(vectors).all():
        raise ValueError(f"{name} must be a finite array (images, dim), not empty; got shape {vectors.shape}")
    greatest = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = vectors / np.where(greatest > 0, greatest, 1.0)  # so that no square is infinite or 0
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1.0)).astype("float32")
