"""Labelled images for fitting and evaluation, from a source or as ready batches."""

import functools
import os

import numpy as np
import tensorflow as tf

from keras_vit import checks
from keras_vit.data import from_directory
from keras_vit.data.pipeline import eval_batches
from keras_vit.data.sources import ImageSource, numbered_names
from keras_vit.evaluation.outputs import check_preprocessing

_LABELS_AT_A_TIME = 1024


def open_labelled(data, model, preprocessing, batch_size):
    """Open images with labels.

    Args:
        data: {name in messages, such as `"train"`: a folder of class folders, an `ImageSource`, or a batched
            `tf.data.Dataset` of (model inputs, integer labels)}.
        model: the keras model that images of a folder or source are prepared for.
        preprocessing: replaces the model's own, or None.
        batch_size: images per batch.

    Returns:
        List of `SourceImages` and `ReadyBatches`.

    Raises:
        TypeError: on data of another kind.
        ValueError: if `preprocessing` is given but not used, or does not fit the model.
    """
    checks.check_integer("batch_size", batch_size)
    opened = []
    for name, given in data.items():
        given = from_directory(given) if isinstance(given, (str, os.PathLike)) else given
        if isinstance(given, ImageSource):
            opened.append(SourceImages(name, given, check_preprocessing(model, preprocessing), batch_size))
        elif hasattr(given, "as_numpy_iterator"):
            opened.append(ReadyBatches(name, given, batch_size))
        else:
            raise TypeError(
                f"{name} must be a folder, an ImageSource or a batched tf.data.Dataset of (inputs, labels); "
                f"got {type(given).__name__}"
            )
    if preprocessing is not None and all(isinstance(given, ReadyBatches) for given in opened):
        raise ValueError("preprocessing is for folders and sources; a dataset must contain model inputs")
    return opened


class SourceImages:
    """The images of an `ImageSource`, prepared by a `Preprocessing`."""

    def __init__(self, name, source, preprocessing, batch_size):
        self.name, self.source, self.class_names = name, source, source.class_names
        self.preprocessing, self._batch_size = preprocessing, batch_size

    @functools.cached_property
    def labels(self):
        """The label of every image, int (images,); read without the images if the source has lookup."""
        source = self.source
        if source.labels is not None:
            return check_labels(self.name, source.labels, len(self.class_names))
        if source.lookup is None:
            labels = source.dataset.map(lambda element: element["label"])
        else:
            labels = tf.data.Dataset.range(source.size).map(
                lambda n: source.lookup(n)["label"], num_parallel_calls=tf.data.AUTOTUNE
            )
        found = list(labels.batch(_LABELS_AT_A_TIME).as_numpy_iterator())
        return check_labels(self.name, np.concatenate(found or [np.zeros(0, int)]), len(self.class_names))

    def batches(self, positions=None):
        """Return an iterator of (inputs, labels) of all images, or those at ascending `positions`, and its length."""
        source, count = self.source, self.source.size if positions is None else len(positions)
        if positions is not None and source.lookup is None:
            dataset = _filtered(source.dataset, positions, source.size)
            source = ImageSource(
                dataset, self.class_names, count, describe=lambda n: self.source.name_of(int(positions[n]))
            )
        elif positions is not None:
            source = source.take(positions)
        batches = eval_batches(source, self.preprocessing, self._batch_size)
        return _checked(self, batches, positions), -(-count // self._batch_size)


class ReadyBatches:
    """The images of a batched `tf.data.Dataset` of (model inputs, integer labels)."""

    class_names = preprocessing = source = None

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

    def batches(self, positions=None):
        """Return the same as `SourceImages.batches`; the length is None if the size of the dataset is unknown."""
        dataset, steps = self._dataset, int(self._dataset.cardinality())
        if positions is not None:
            dataset = _filtered(dataset.unbatch(), positions, len(self.labels)).batch(self._batch_size)
            steps = -(-len(positions) // self._batch_size)
        return _checked(self, dataset.as_numpy_iterator(), positions), steps if steps >= 0 else None


def check_labels(name, labels, classes=None):
    """Return labels (images,) as NumPy; raise an error if there are none or one is not an integer in [0, `classes`)."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"{name} must have integer labels (images,); got {labels.dtype} of shape {labels.shape}")
    if not len(labels):
        raise ValueError(f"{name} must contain at least one image; it contains none")
    if labels.min() < 0 or (classes is not None and labels.max() >= classes):
        last = "" if classes is None else f" to {classes - 1}, as there are {classes} classes"
        raise ValueError(f"labels of {name} must be from 0{last}; they range from {labels.min()} to {labels.max()}")
    return labels


def match_labels(train, test):
    """Find, for each label of `test`, the class of `train` with the same name.

    Returns:
        `(class_names, places)`: the names in the order of the labels of `train`, and the label in `train` of each class
        of `test`. Ready batches have no names: their labels refer to the classes of the other data. Two datasets use
        the names `"0"` and so on up to the highest label of `train`.

    Raises:
        ValueError: if the classes differ, or there are fewer than two.
    """
    names = train.class_names or test.class_names or numbered_names(int(train.labels.max()))
    others = test.class_names or names
    if sorted(names) != sorted(others):
        missing, unknown = (sorted(set(one) - set(other))[:5] for one, other in ((names, others), (others, names)))
        raise ValueError(
            f"train and test must have the same classes; got {len(names)} and {len(others)}, only in train: "
            f"{', '.join(missing) or 'none'}; only in test: {', '.join(unknown) or 'none'}"
        )
    if len(names) < 2:
        raise ValueError(f"train must have at least two classes; it has {len(names)}")
    return names, np.asarray(range(len(names)) if names == others else [names.index(name) for name in others])


def _checked(data, batches, positions):
    """Yield batches; raise an error if there are none, labels are invalid or the labels at `positions` have changed."""
    expected, done = None if positions is None else data.labels[positions], 0
    for inputs, labels in batches:
        labels = check_labels(data.name, labels)
        if expected is not None and not np.array_equal(labels, expected[done : done + len(labels)]):
            raise ValueError(f"{data.name} must keep its order, but its labels have changed: remove its shuffle")
        done += len(labels)
        yield inputs, labels
    if not done:
        raise ValueError(f"{data.name} must contain at least one image; it contains none")


def _filtered(dataset, positions, size):
    with tf.device("CPU"):
        is_chosen = tf.constant(np.isin(np.arange(size), positions))

    # Lambdas on separate lines, because AutoGraph warns about two on one line.
    chosen = dataset.enumerate().filter(lambda n, element: is_chosen[n])
    return chosen.map(lambda n, element: element)
