"""Labelled images to fit to and to measure on: from a source, or as ready batches."""

import functools
import os

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.data import from_directory
from keras_vit.data.corrupt import data_error
from keras_vit.data.pipeline import eval_batches
from keras_vit.data.sources import ImageSource

_LABELS_AT_A_TIME = 1024


def open_labelled(data, frozen, preprocessing, batch_size):
    """Open images with labels.

    Args:
        data: {name in messages, such as `"train"`: a folder of class folders, an `ImageSource`, or a batched
            `tf.data.Dataset` of (model inputs, integer labels)}.
        frozen: the `FrozenFeatures` that will read them; it decides how images of a folder or source are prepared.
        preprocessing: replaces the model's own, or None.
        batch_size: images per batch.

    Returns:
        List of `SourceImages` and `ReadyBatches`.

    Raises:
        TypeError: on data of another kind.
        ValueError: if `preprocessing` is given but not used, or does not fit the model.
    """
    checks.check_integer("batch_size", batch_size)
    opened = [_open(name, where, frozen, preprocessing, batch_size) for name, where in data.items()]
    if preprocessing is not None and not any(isinstance(one, SourceImages) for one in opened):
        raise ValueError("preprocessing is for folders and sources; a dataset must contain model inputs")
    return opened


def match_labels(train, test):
    """Find the class of `train` with the same name for each label of `test`.

    Returns:
        `(class_names, places)`: the names in the order of the labels of `train`, and the label in `train` of each class
        of `test`. Ready batches have no names: their labels are those of the other data. Two datasets use the names
        `"0"` and so on up to the highest label of `train`.

    Raises:
        ValueError: if the classes differ, or there are fewer than two.
    """
    names = train.class_names or test.class_names or numbered_names(train.labels)
    others = test.class_names or names
    missing, unknown = (sorted(set(one) - set(other)) for one, other in ((names, others), (others, names)))
    if missing or unknown or len(names) != len(others):
        found = [f"{_listed(missing)} of train alone"] * bool(missing) + [f"{_listed(unknown)} of test"] * bool(unknown)
        raise ValueError(
            f"train and test must have the same classes; got {len(names)} and {len(others)}, {', '.join(found)}"
        )
    if len(names) < 2:
        raise ValueError(f"train must have at least two classes; it has {len(names)}")
    places = range(len(names)) if names == others else [names.index(name) for name in others]
    return names, np.asarray(places)


def numbered_names(labels):
    """Return `"0"`, `"1"` and so on up to the highest label."""
    return tuple(str(number) for number in range(int(labels.max()) + 1))


def _open(name, data, frozen, preprocessing, batch_size):
    if isinstance(data, (str, os.PathLike)):
        data = from_directory(data)
    if isinstance(data, ImageSource):
        return SourceImages(name, data, frozen.preprocessing(preprocessing), batch_size)
    if hasattr(data, "as_numpy_iterator"):
        return ReadyBatches(name, data, batch_size)
    raise TypeError(
        f"{name} must be a folder, an ImageSource or a batched tf.data.Dataset of (inputs, labels); "
        f"got {type(data).__name__}"
    )


class SourceImages:
    """The images of an `ImageSource`, prepared by a `Preprocessing`."""

    def __init__(self, name, source, preprocessing, batch_size):
        self.class_names = source.class_names
        self.name, self._source, self.preprocessing, self._batch_size = name, source, preprocessing, batch_size

    @functools.cached_property
    def labels(self):
        """The label of every image, int (images,); read without the images if the source has lookup."""
        source = self._source
        if source.labels is not None:
            return check_labels(self.name, source.labels, len(self.class_names))
        if source.lookup is None:
            labels = source.dataset.map(lambda element: element["label"])
        else:
            labels = tf.data.Dataset.range(source.size).map(
                lambda n: source.lookup(n)["label"], num_parallel_calls=tf.data.AUTOTUNE
            )
        try:
            found = list(labels.batch(_LABELS_AT_A_TIME).as_numpy_iterator())
        except tf.errors.OpError as error:
            raise (data_error(error) or error) from None
        return check_labels(self.name, np.concatenate(found or [np.zeros(0, int)]), len(self.class_names))

    def steps(self, count=None):
        """Return the number of batches of `count` images; None for all images."""
        return -(-(self._source.size if count is None else count) // self._batch_size)

    def batches(self, positions=None):
        """Yield (inputs, labels) of all images, or of those at ascending `positions`."""
        source = self._source if positions is None else _chosen(self._source, positions)
        batches = eval_batches(source, self.preprocessing, self._batch_size)
        is_read_again = positions is not None and source.lookup is None
        return _in_order(self.name, batches, self.labels[positions]) if is_read_again else batches


class ReadyBatches:
    """The images of a batched `tf.data.Dataset` of (model inputs, integer labels)."""

    class_names = preprocessing = None

    def __init__(self, name, dataset, batch_size):
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) != 2:
            raise ValueError(f"{name} must be a dataset of batches (inputs, labels); its elements are {spec}")
        self.name, self._dataset, self._batch_size = name, dataset, batch_size

    @functools.cached_property
    def labels(self):
        """The label of every image, int (images,), from the first pass over the dataset."""
        found = list(self._dataset.map(lambda inputs, labels: labels).as_numpy_iterator()) or [np.zeros(0, int)]
        return np.concatenate([check_labels(self.name, labels) for labels in found])

    def steps(self, count=None):
        """Return the number of batches of `count` images (None: all), or None if the dataset has no known size."""
        if count is not None:
            return -(-count // self._batch_size)
        known = int(self._dataset.cardinality())
        return known if known >= 0 else None

    def batches(self, positions=None):
        """Yield (inputs, labels) of all images, or of those at ascending `positions`."""
        if positions is None:
            return self._dataset.as_numpy_iterator()
        rows = _filtered(self._dataset.unbatch(), positions, len(self.labels)).batch(self._batch_size)
        return _in_order(self.name, rows.as_numpy_iterator(), self.labels[positions])


def check_labels(name, labels, classes=None):
    """Return labels (images,) as NumPy after checking that they are integers from 0 to `classes` - 1, at least one."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must have integer labels of shape (batch,); got {labels.dtype} of shape {labels.shape}"
        )
    if not len(labels):
        raise ValueError(f"{name} must contain at least one image; it contains none")
    if labels.min() < 0 or (classes is not None and labels.max() >= classes):
        last = "" if classes is None else f" to {classes - 1}, as there are {classes} classes"
        raise ValueError(f"labels of {name} must be from 0{last}; they range from {labels.min()} to {labels.max()}")
    return labels


def _in_order(name, batches, expected):
    """Yield batches that are read a second time; raise if their labels have changed."""
    done = 0
    for inputs, labels in batches:
        if not np.array_equal(labels, expected[done : done + len(labels)]):
            raise ValueError(
                f"{name} must return its images in the same order every time, but the labels have changed: remove its "
                "shuffle, or use reshuffle_each_iteration=False"
            )
        done += len(labels)
        yield inputs, labels


def _chosen(source, positions):
    if source.lookup is not None:
        return source.take(positions)
    dataset = _filtered(source.dataset, positions, source.size)
    files = None if source.files is None else tuple(source.files[position] for position in positions)
    name_of = source.describe or "image {}".format

    def describe(n):  # does not keep the source in memory
        return name_of(int(positions[n]))

    is_described = source.describe is not None or files is None
    return ImageSource(dataset, source.class_names, len(positions), files, describe=describe if is_described else None)


def _filtered(dataset, positions, size):
    with tf.device("CPU"):
        is_chosen = tf.constant(np.isin(np.arange(size), positions))

    def choose(n, element):
        return is_chosen[n]

    # Functions on separate lines, because AutoGraph warns about two lambdas on one line.
    return dataset.enumerate().filter(choose).map(lambda n, element: element)


def _listed(names):
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
